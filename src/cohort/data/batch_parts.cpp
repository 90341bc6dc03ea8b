// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/batch_parts.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/narrow.h>
#include <ATen/ops/zeros.h>

#include <atomic>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/core/string_tensor.h"

namespace cohort::data {

at::Tensor narrow_rows(const at::Tensor& field, std::int64_t begin, std::int64_t end) {
  if (StringTensor::is(field)) return StringTensor::of(field).slice(begin, end);
  return with_own_version(at::narrow(field, 0, begin, end - begin));
}

at::Tensor with_own_version(const at::Tensor& tensor) {
  return tensor.is_view() && !tensor.requires_grad() ? tensor.variable_data() : tensor;
}

at::Tensor empty_tensor(const TensorSpec& spec) {
  // An element of unknown rank becomes an empty vector.
  std::vector<std::int64_t> sizes = spec.sizes.value_or(std::vector<std::int64_t>{0});
  for (std::int64_t& size : sizes) size = size < 0 ? 0 : size;
  if (!sizes.empty()) sizes.front() = 0;
  if (spec.dtype != kString) return at::zeros(sizes, at::TensorOptions().dtype(spec.dtype));
  if (sizes.empty()) return StringTensor(std::string()).tensor();
  return StringTensor(std::move(sizes), std::span<const std::string>()).tensor();
}

Fields empty_batch_of(const ElementSpec& spec) {
  Fields fields;
  for (const TensorSpec& field : spec.fields) fields.push_back(empty_tensor(field));
  return fields;
}

void warn_of_other_rows(std::span<const at::Tensor> fields) {
  static std::atomic<bool> has_warned = false;
  for (std::size_t i = 1; i < fields.size(); ++i) {
    if (fields[i].size(0) == fields[0].size(0) || has_warned.exchange(true)) continue;
    log_warn("[data.rebatch_split] expected ", fields[0].size(0),
             " rows in every field of a batch, as in field 0, got ", fields[i].size(0),
             " in field ", i,
             ", which is cut into parts for itself; what is not of the rows, such as a table, "
             "should be an argument of run(), or captured. This line comes once");
  }
}

at::Tensor select_row(const at::Tensor& field, std::int64_t row) {
  if (StringTensor::is(field)) return StringTensor::of(field).row(row);
  if (!field.is_contiguous()) return field.select(0, row).contiguous().clone();
  at::Tensor selected = at::empty(field.sizes().slice(1), field.scalar_type());
  if (selected.nbytes() > 0) {
    std::memcpy(selected.data_ptr(),
                static_cast<const std::byte*>(field.data_ptr()) +
                    static_cast<std::size_t>(row) * selected.nbytes(),
                selected.nbytes());
  }
  return selected;
}

at::Tensor join_rows(std::span<const at::Tensor> parts) {
  if (StringTensor::is(parts[0])) return StringTensor::concatenate(parts);
  return at::cat(at::TensorList(parts.data(), parts.size()), 0);
}

std::int64_t row_count(const Fields& fields, std::string_view op) {
  for (std::size_t i = 0; i < fields.size(); ++i) {
    COHORT_CHECK(fields[i].dim() > 0, ErrorCode::invalid_argument, "[data.", op,
                 "] expected batches, got a scalar, ", TensorSpec::of(fields[i]).to_string(),
                 ", in field ", i, "; batch() first");
    COHORT_CHECK(fields[i].size(0) == fields[0].size(0), ErrorCode::invalid_argument, "[data.", op,
                 "] expected ", fields[0].size(0), " rows in every field, as in field 0, got ",
                 TensorSpec::of(fields[i]).to_string(), " for field ", i);
  }
  return fields.empty() ? 0 : fields[0].size(0);
}

void check_batches(const ElementSpec& spec, std::string_view op) {
  for (std::size_t i = 0; i < spec.fields.size(); ++i) {
    COHORT_CHECK(!spec.fields[i].sizes || !spec.fields[i].sizes->empty(),
                 ErrorCode::invalid_argument, "[data.", op, "] expected batches, got ",
                 spec.to_string(), " with a scalar in field ", i, "; batch() first");
  }
}

}  // namespace cohort::data
