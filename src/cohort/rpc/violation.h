// SPDX-License-Identifier: Apache-2.0
// Messages that a correct task never sends. The connection is closed after one, because the sender
// cannot be trusted.
#pragma once

#include <cstdint>

#include "cohort/core/error.h"
#include "cohort/core/export.h"

namespace cohort::rpc {

// Checks that the closure is not below the watermark, below which every closure is retired. A wrong
// watermark would make this server drop all later updates of the run.
COHORT_API void check_watermark(std::uint64_t low_watermark, std::uint64_t closure_id);
// Whether the error is about such a message.
COHORT_API bool is_violation(const Error& error);

}  // namespace cohort::rpc
