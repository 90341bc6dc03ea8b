// SPDX-License-Identifier: Apache-2.0
// A variable whose rows are on several servers: how its reads and updates are divided.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "cohort/core/effect_handler.h"
#include "cohort/core/export.h"
#include "cohort/rpc/membership.h"

namespace cohort::parameter_server {

// The rows among some ids that one slice has.
struct RowsOfSlice {
  std::size_t slice = 0;
  at::Tensor ids;     // int64 [n], counted from the first row of the slice
  at::Tensor places;  // int64 [n], ascending: where they are among all ids; undefined: they are all
};
// For each slice that has some; without ids for the first one, which then knows the size of a row.
// `ids`: int64 [m], rows of the variable.
COHORT_API std::vector<RowsOfSlice> split_rows(std::span<const rpc::Slice> slices,
                                               const at::Tensor& ids);
// Rows [n, …] that split_rows() has divided, in the order of the ids.
COHORT_API at::Tensor joined_rows(std::span<const RowsOfSlice> split,
                                  std::span<const at::Tensor> rows);

// The value of a variable from those of its slices; undefined if they are.
COHORT_API at::Tensor joined_slices(std::span<at::Tensor> values);

// An effect on the rows of one slice.
struct EffectOnSlice {
  std::size_t slice = 0;
  internal::Effect effect;
};
// A step of an optimizer goes to all slices, also to those without rows of a sparse gradient,
// because a rule may change rows without a gradient, or count steps. `versions`: of the slices, for
// an average, or empty.
COHORT_API std::vector<EffectOnSlice> split_effect(std::span<const rpc::Slice> slices,
                                                   internal::Effect effect,
                                                   std::span<const std::uint64_t> versions);

}  // namespace cohort::parameter_server
