// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/interpreter/run_values.h"

#include <ATen/core/TensorBody.h>

#include <algorithm>

#include "cohort/core/computed.h"
#include "cohort/core/error.h"

namespace cohort::function {

void check_spec(const TensorSpec& expected, const at::Tensor& value, std::string_view what,
                std::size_t index, std::string_view name) {
  const auto fits = [&] {
    if (value.scalar_type() != expected.dtype) return false;
    return !expected.sizes || value.sizes() == at::IntArrayRef(*expected.sizes);
  };
  if (value.defined() && fits()) return;
  internal::throw_error(ErrorCode::invalid_argument, "[function.run] expected ", what, " #", index,
                        name, " of ", expected.to_string(), ", got ",
                        value.defined() ? TensorSpec::of(value).to_string() : "an undefined tensor",
                        "; another shape or dtype needs its own trace");
}

at::Tensor row_major(const at::Tensor& given) {
  if (!given.defined() || given.layout() != at::kStrided) return given;
  const at::Tensor value = computed(given);
  c10::SmallVector<std::int64_t, 6> strides(static_cast<std::size_t>(value.dim()), 1);
  for (std::size_t i = strides.size(); i-- > 1;)
    strides[i - 1] = strides[i] * std::max<std::int64_t>(value.sizes()[i], 1);
  if (value.strides() == at::IntArrayRef(strides)) return value;
  // Only the strides of dimensions of one element differ.
  if (value.is_contiguous()) return value.as_strided(value.sizes(), strides);
  return value.contiguous();
}

}  // namespace cohort::function
