// SPDX-License-Identifier: Apache-2.0
// A closure computes with the values that its arguments have when it is scheduled, whatever their
// owner writes there while it waits, or is retried.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

namespace cohort::coordinator::internal {

// Copies of small arguments are used again by later closures: they are made on a caller's thread
// and let go on a channel's, and memory that is freed on another thread costs more than the copy.
constexpr std::size_t kSmallBytesMax = 1024;

// Replaces each dense CPU tensor of more than kSmallBytesMax by a copy, unless nobody else can
// write there. The caller holds `handles` of each, these included.
void keep_large(std::vector<at::Tensor>& arguments, std::size_t handles);

// The same for the first `count` of `inputs`, for those that are left. Into `copies`, by position,
// as far as nobody uses the ones there any longer.
void keep_small(std::vector<at::Tensor>& inputs, std::size_t count, std::size_t handles,
                std::vector<at::Tensor>& copies);

}  // namespace cohort::coordinator::internal
