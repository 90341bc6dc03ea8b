// SPDX-License-Identifier: Apache-2.0
// A number of all replicas that is known before a traced step runs, since it follows from shapes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "cohort/strategy/replica_trace.h"

namespace cohort::internal {

// Records that this replica adds `own` to a sum over the replicas, which all make this call, and
// returns the sum: int64, one number. When programs are joined, calls check(sum), which may throw.
// `call` is for messages.
at::Tensor traced_sum(ReplicaTrace& trace, std::string_view call, std::int64_t own,
                      void (*check)(std::int64_t));

}  // namespace cohort::internal
