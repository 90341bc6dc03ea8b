// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/empty_batch.h"

#include <ATen/ops/zeros.h>

#include <string>
#include <vector>

#include "cohort/core/string_tensor.h"

namespace cohort::input {

at::Tensor empty_tensor(const TensorSpec& spec) {
  // An element of unknown rank becomes an empty vector.
  std::vector<std::int64_t> sizes = spec.sizes.value_or(std::vector<std::int64_t>{0});
  for (std::int64_t& size : sizes) size = size < 0 ? 0 : size;
  if (!sizes.empty()) sizes.front() = 0;
  if (spec.dtype != kString) return at::zeros(sizes, at::TensorOptions().dtype(spec.dtype));
  if (sizes.empty()) return StringTensor(std::string()).tensor();
  return StringTensor(std::move(sizes), std::span<const std::string>()).tensor();
}

Nest empty_element(const ElementSpec& spec) {
  Fields fields;
  for (const TensorSpec& field : spec.fields) fields.push_back(empty_tensor(field));
  return spec.pack(fields);
}

}  // namespace cohort::input
