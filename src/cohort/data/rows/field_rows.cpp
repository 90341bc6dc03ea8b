// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/rows/field_rows.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

#include "cohort/core/error.h"
#include "cohort/core/string_tensor.h"
#include "cohort/data/batch_parts.h"

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

at::Tensor narrow_rows(const at::Tensor& field, std::int64_t begin, std::int64_t end) {
  if (StringTensor::is(field)) return StringTensor::of(field).slice(begin, end);
  return rows_of_batch(field, begin, end);
}

at::Tensor join_rows(std::span<const at::Tensor> parts) {
  if (StringTensor::is(parts[0])) return StringTensor::concatenate(parts);
  return at::cat(at::TensorList(parts.data(), parts.size()), 0);
}

Fields join_batches(std::vector<Fields> batches) {
  if (batches.size() == 1) return std::move(batches[0]);
  Fields all;
  for (std::size_t i = 0; i < batches[0].size(); ++i) {
    Fields column;
    for (const Fields& batch : batches) column.push_back(batch[i]);
    all.push_back(join_rows(column));
  }
  return all;
}

Fields empty_batch_of(const ElementSpec& spec) {
  Fields fields;
  for (const TensorSpec& field : spec.fields) {
    std::vector<std::int64_t> sizes = field.sizes.value_or(std::vector<std::int64_t>{0});
    std::replace(sizes.begin(), sizes.end(), std::int64_t{-1}, std::int64_t{0});
    sizes.front() = 0;
    if (field.dtype == kString) {
      fields.push_back(StringTensor(std::move(sizes), std::initializer_list<std::string>{}));
    } else {
      fields.push_back(at::empty(sizes, field.dtype));
    }
  }
  return fields;
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

}  // namespace cohort::data
