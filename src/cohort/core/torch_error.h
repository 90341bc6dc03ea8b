// SPDX-License-Identifier: Apache-2.0
// Shortens the message of an exception of LibTorch. Its what() has a page of stack frames and, if
// an operator has no kernel for a device, a page of the kernels that it has.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/util/Exception.h>

#include <string>
#include <string_view>

#include "cohort/core/error.h"
#include "cohort/core/export.h"

namespace cohort {

// For the end of a message about too little memory.
inline constexpr std::string_view kMemoryRemedy =
    "give this process more, or make batches and buffers smaller";

// LibTorch's message without these pages. If it is about CUDA and this process has no CUDA device,
// or about a backward pass through a value that was overwritten, the remedy follows it.
// Thread-safe.
COHORT_API std::string text_of_torch_error(const c10::Error& error);

// An Error of the cause `application` with that message, and with `code`; but if the CPU had too
// little memory for a tensor, for which LibTorch has no type of its own, it is resource_exhausted
// with a remedy; and invalid_argument for a backward pass through a value that was overwritten.
// Thread-safe.
COHORT_API Error error_of_torch(const c10::Error& error, ErrorCode code);

// Whether this process can make tensors on devices of this type. False for CUDA if LibTorch was
// built for CPUs alone, or if there is no GPU. Thread-safe.
COHORT_API bool has_device(c10::DeviceType type);

}  // namespace cohort
