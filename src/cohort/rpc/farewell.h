// SPDX-License-Identifier: Apache-2.0
// The last words of an end that closes a channel.
#pragma once

#include <cstdint>

#include "cohort/core/export.h"
#include "cohort/rpc/frame.h"

namespace cohort::rpc {

// No request has it.
inline constexpr std::uint64_t kFarewellId = 0;
// An error of no request: those that wait for answers of the sender, and Requester's on_closed, get
// it in place of the loss of the channel.
COHORT_API Frame farewell_frame(const Error& why);

}  // namespace cohort::rpc
