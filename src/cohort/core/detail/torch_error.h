// SPDX-License-Identifier: Apache-2.0
// What to show of an exception of LibTorch. Its what() has a page of stack frames and, if an
// operator has no kernel for a device, a page of the kernels that it has.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/util/Exception.h>

#include <string>

#include "cohort/core/export.h"

namespace cohort {

// LibTorch's message without these pages. If it is about CUDA and this process has no CUDA device,
// the remedy follows it. Thread-safe.
COHORT_API std::string text_of_torch_error(const c10::Error& error);

// Whether this process can make tensors on devices of this type. False for CUDA if LibTorch was
// built for CPUs alone, or if there is no GPU. Thread-safe.
COHORT_API bool has_device(c10::DeviceType type);

}  // namespace cohort
