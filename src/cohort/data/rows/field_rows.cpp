// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/rows/field_rows.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <cstring>

#include "cohort/core/error.h"
#include "cohort/core/string_tensor.h"

namespace cohort::data {

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
