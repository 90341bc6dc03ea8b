// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "cohort/core/export.h"

namespace cohort::rpc {

// A contiguous tensor on the CPU with arbitrary content, for an answer that is made, sent and
// forgotten: if it is large, its memory is that of received messages, which is kept and reused
// (frames/block_pool.h). malloc gives a large piece back to the system, whose next one then costs a
// trap for each page, twice as much as filling it. Throws resource_exhausted if there is no memory.
// Thread-safe.
COHORT_API at::Tensor pooled_tensor(at::IntArrayRef sizes, at::ScalarType dtype);

}  // namespace cohort::rpc
