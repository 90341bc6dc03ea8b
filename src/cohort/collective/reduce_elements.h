// SPDX-License-Identifier: Apache-2.0
// The arithmetic of reductions: one function for all backends, so that all give the same bits.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "cohort/collective/group.h"

namespace cohort::collective {

// Whether values of this type have a sum.
bool has_sum(at::ScalarType dtype);

// Whether a mean of this type is of this type, too.
bool has_mean(at::ScalarType dtype);

struct Reduction {
  at::ScalarType dtype = at::ScalarType::Float;
  ReduceOp op = ReduceOp::sum;
  // The values of the members in the order of ranks. nullptr: the values of this member are in the
  // input of a member before it already. Such an input is the sum of a subtree of the balanced
  // tree, by its first member.
  std::span<const std::byte* const> inputs = {};
  std::span<std::byte* const> outputs = {};  // each is one of the inputs, or overlaps none
  std::int64_t count = 0;                    // elements
};

// Reduces the elements of all inputs into each output. They are added in a balanced tree: the left
// part of n inputs is the largest power of two below n. So the sum over 4 members has the same bits
// as that over 2 members, each of which has added the values of two.
void reduce_elements(const Reduction& reduction) noexcept;

// Whether values are added as float32 and rounded at the end: float16 and bfloat16.
bool is_added_as_float(at::ScalarType dtype);
// Convert values of such a type as reduce_elements() does.
void widen(at::ScalarType dtype, const std::byte* from, float* to, std::int64_t count) noexcept;
void round_to(at::ScalarType dtype, const float* from, std::byte* to, std::int64_t count) noexcept;

}  // namespace cohort::collective
