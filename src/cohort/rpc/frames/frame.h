// SPDX-License-Identifier: Apache-2.0
// The unit of the data plane: a small header, metadata bytes, and tensors outside any IDL
// (docs/formats/frame.md).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
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

// An error as a frame and back: code, cause, origin, incarnation, message and context survive.
COHORT_API Frame error_frame(std::uint64_t id, const Error& error);
COHORT_API Error error_of(const Frame& frame);

}  // namespace cohort::rpc
