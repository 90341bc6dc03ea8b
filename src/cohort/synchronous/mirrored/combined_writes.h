// SPDX-License-Identifier: Apache-2.0
// What replicas write into a variable together, where it has an aggregation.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "cohort/synchronous/mirrored/mirrored_variable.h"

namespace cohort::internal {

// Whether all replicas assign the same object, and whether that is a number of the host.
struct OneForAll {
  bool is_one = false;
  bool is_number = false;
};

// The value that the replicas assign together. Throws invalid_argument for a sum of what is the
// same in all of them.
at::Tensor combined(const MirroredVariable& variable, const std::vector<at::Tensor>& values,
                    const OneForAll& one);
// The change of rows that the replicas make together: all of theirs, one after the other. `is_one`:
// all give the same tensors.
RowUpdate combined_rows(const MirroredVariable& variable,
                        const std::vector<const RowUpdate*>& of_replicas, bool is_one);

}  // namespace cohort::internal
