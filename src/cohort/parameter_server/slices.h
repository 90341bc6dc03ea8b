// SPDX-License-Identifier: Apache-2.0
// A variable whose rows are on several servers: how its reads and updates are divided. A table
// divides its keys by their hashes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "cohort/core/effect_handler.h"
#include "cohort/core/export.h"
#include "cohort/rpc/membership.h"
#include "cohort/variable/rows.h"

namespace cohort::parameter_server {

// The slice of a key in a table of this number of slices.
COHORT_API std::size_t slice_of_key(std::int64_t key, std::size_t num_slices);

using variable::joined_rows;
using variable::RowsOfPart;

// The rows that each slice has; see variable/rows.h. `ids`: int64 [m], rows of the variable, of
// which the server of the first or the last slice refuses a number that is none; or keys of a
// table, which stay as they are.
COHORT_API std::vector<RowsOfPart> split_rows(std::span<const rpc::Slice> slices,
                                              const at::Tensor& ids);

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
