// SPDX-License-Identifier: Apache-2.0
// Which tensors a frame can carry, for code that must know before it sends.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

#include "cohort/core/export.h"

namespace cohort::rpc {

// Returns an empty text for a tensor that a frame can carry. Otherwise describes the tensor and the
// reason: "float32[2] of a sparse layout". Undefined tensors cannot be sent either.
COHORT_API std::string why_not_sendable(const at::Tensor& tensor);
// Throws invalid_argument for a tensor that a frame cannot carry: "[<call>] expected dense CPU
// tensors <role>, got … (<which>); <remedy>". `role` may be empty.
COHORT_API void check_sendable(const at::Tensor& tensor, std::string_view call,
                               std::string_view role, std::string_view which,
                               std::string_view remedy);

}  // namespace cohort::rpc
