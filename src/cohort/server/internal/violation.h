// SPDX-License-Identifier: Apache-2.0
// Messages that no task sends which works right. Who sent one is not to be trusted with the next:
// the connection ends.
#pragma once

#include <cstdint>

#include "cohort/core/error.h"

namespace cohort::server {

// Every closure below the watermark is retired, so one that comes with it is not. Otherwise this
// and every later update of the run would be dropped as late.
void check_watermark(std::uint64_t low_watermark, std::uint64_t closure_id);
// Whether a message was refused for this reason.
bool is_violation(const Error& error);

}  // namespace cohort::server
