// SPDX-License-Identifier: Apache-2.0
// The unit of the data plane: a small header, metadata bytes, and tensors outside any IDL
// (docs/formats/frame.md).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/error.h"

namespace cohort::rpc {

struct Frame {
  enum class Role : std::uint8_t { one_way = 0, request = 1, response = 2, error = 3 };
  Role role = Role::one_way;
  std::uint16_t type = 0;  // a MessageType
  std::uint64_t id = 0;    // ties a response to its request
  Bytes metadata{};
  // Dense CPU tensors. They may be sent from their own memory, which must not change until they are
  // sent (the frame keeps them alive). Received ones are views of one block per frame.
  std::vector<at::Tensor> tensors{};
};

// The frame as the response to the request with this id.
COHORT_API Frame response_to(std::uint64_t id, Frame reply);
// An error as a frame and back: code, cause, origin, incarnation, message and context survive.
COHORT_API Frame error_frame(std::uint64_t id, const Error& error);
COHORT_API Error error_of(const Frame& frame);

// No request has this id.
inline constexpr std::uint64_t kFarewellId = 0;
// The last frame that an end sends before it closes a channel: an error that belongs to no request.
// Requests that wait for an answer of the sender, and Requester's on_closed, get it instead of the
// loss of the channel.
inline Frame farewell_frame(const Error& why) { return error_frame(kFarewellId, why); }

// Returns an empty text for a tensor that a frame can carry. Otherwise describes the tensor and the
// reason: "float32[2] of a sparse layout". Undefined tensors cannot be sent either.
COHORT_API std::string why_not_sendable(const at::Tensor& tensor);
// Throws invalid_argument for a tensor that a frame cannot carry: "[<call>] expected dense CPU
// tensors <role>, got … (<which>); <remedy>". `role` may be empty.
COHORT_API void check_sendable(const at::Tensor& tensor, std::string_view call,
                               std::string_view role, std::string_view which,
                               std::string_view remedy);

}  // namespace cohort::rpc
