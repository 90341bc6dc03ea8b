// SPDX-License-Identifier: Apache-2.0
// Errors that tasks send to each other, and by which they recognize them.
#pragma once

#include <cstdint>
#include <string>

#include "cohort/core/error.h"

namespace cohort::rpc {

// The error that a coordinator gets from `task` after another one has replaced it. The task accepts
// none of its calls any more.
COHORT_API Error replaced_error(const std::string& task);
COHORT_API bool is_replaced(const Error& error);

// The same error, which has a parameter server as origin, with the code unavailable, on which
// callers can rely for a lost parameter server, and with a remedy.
COHORT_API Error as_lost_server(const Error& error);

// Checks that the closure is not below the watermark, below which every closure is retired. A wrong
// watermark would make this server drop all later updates of the run.
COHORT_API void check_watermark(std::uint64_t low_watermark, std::uint64_t closure_id);
// Whether the error is about a message that a correct task never sends. The connection is closed
// after one, because the sender cannot be trusted.
COHORT_API bool is_violation(const Error& error);

}  // namespace cohort::rpc
