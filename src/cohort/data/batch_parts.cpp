// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/detail/batch_parts.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/narrow.h>

namespace cohort::data {

at::Tensor rows_of_batch(const at::Tensor& field, std::int64_t begin, std::int64_t end) {
  return with_own_version(at::narrow(field, 0, begin, end - begin));
}

at::Tensor with_own_version(const at::Tensor& tensor) {
  return tensor.is_view() && !tensor.requires_grad() ? tensor.variable_data() : tensor;
}

}  // namespace cohort::data
