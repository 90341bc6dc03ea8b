// SPDX-License-Identifier: Apache-2.0
// Whether this process can open the file descriptors that it is about to need.
#pragma once

#include <cstddef>

#include "cohort/core/export.h"

namespace cohort::rpc {

// The descriptors that gRPC opens in a process before its first connection. It aborts the process
// if it cannot open one of them.
inline constexpr std::size_t kGrpcDescriptors = 4;
// For each connection to or from a task: one for control, two for tensors.
inline constexpr std::size_t kConnectionDescriptors = 3;

// Throws resource_exhausted if this process cannot open `count` more descriptors now: it opens them
// and closes them again. Thread-safe.
COHORT_API void check_descriptor_room(std::size_t count);

// How many more descriptors this process can open now.
COHORT_API std::size_t free_descriptors() noexcept;

}  // namespace cohort::rpc
