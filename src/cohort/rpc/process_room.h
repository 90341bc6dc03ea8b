// SPDX-License-Identifier: Apache-2.0
// Whether this process can start the threads, and open the file descriptors, that it is about to
// need.
#pragma once

#include <cstddef>
#include <functional>
#include <thread>

#include "cohort/core/export.h"

namespace cohort::rpc {

// The least number of threads that gRPC starts in a process.
inline constexpr std::size_t kGrpcThreads = 8;
// The descriptors that gRPC opens in a process before its first connection. It aborts the process
// if it cannot open one of them.
inline constexpr std::size_t kGrpcDescriptors = 4;
// For each connection to or from a task: one for control, two for tensors.
inline constexpr std::size_t kConnectionDescriptors = 3;

// Throws resource_exhausted if this process cannot start `count` more threads now: it starts them
// and lets them end. For libraries that end the process or hang if they get no thread, as gRPC and
// LibTorch's pool do. Thread-safe.
COHORT_API void check_thread_room(std::size_t count);

// Throws resource_exhausted if this process cannot open `count` more descriptors now: it opens them
// and closes them again. Thread-safe.
COHORT_API void check_descriptor_room(std::size_t count);

// How many more descriptors this process can open now.
COHORT_API std::size_t free_descriptors() noexcept;

namespace internal {
using StartThread = std::function<std::thread(std::function<void()>)>;
// The same, with threads that `start` creates.
void check_thread_room(std::size_t count, const StartThread& start);
}  // namespace internal

}  // namespace cohort::rpc
