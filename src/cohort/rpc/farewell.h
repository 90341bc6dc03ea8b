// SPDX-License-Identifier: Apache-2.0
// The last frame that an end sends before it closes a channel. It contains the reason.
#pragma once

#include <cstdint>

#include "cohort/rpc/frames/frame.h"

namespace cohort::rpc {

// No request has this id.
inline constexpr std::uint64_t kFarewellId = 0;
// An error that belongs to no request. Requests that wait for an answer of the sender, and
// Requester's on_closed, get it instead of the loss of the channel.
inline Frame farewell_frame(const Error& why) { return error_frame(kFarewellId, why); }

}  // namespace cohort::rpc
