// SPDX-License-Identifier: Apache-2.0
// Operators with the same results as LibTorch's, whose backward passes do not branch on the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace cohort::function {

// A reduction of all elements to one of them: max, min, median, nanmedian.
using FullReduction = at::Tensor (*)(const at::Tensor&);
at::Tensor reduce_to_one(const at::Tensor& self, FullReduction reduce);
at::Tensor product(const at::Tensor& self);
at::Tensor product(const at::Tensor& self, std::int64_t dim, bool keeps_dim);
at::Tensor scatter_by_mask(const at::Tensor& self, const at::Tensor& mask,
                           const at::Tensor& source);
// index_put with one mask over the first dimensions of `self`.
at::Tensor put_by_mask(const at::Tensor& self, const at::Tensor& mask, const at::Tensor& values,
                       bool accumulates);

}  // namespace cohort::function
