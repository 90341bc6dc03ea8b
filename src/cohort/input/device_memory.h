// SPDX-License-Identifier: Apache-2.0
// The memory of devices, and copying to it. Tests replace it with a device of their own.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "cohort/core/device.h"
#include "cohort/core/export.h"

namespace cohort::input {

// Thread-safe.
class COHORT_API DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  // Whether the device reads host memory: then nothing is copied to it or read ahead for it.
  virtual bool is_host(const Device& device) const = 0;
  // Copies a tensor of host memory. The copy may be asynchronous, in the order of the device's
  // work. Not for strings.
  virtual at::Tensor copy(const at::Tensor& tensor, const Device& device) const = 0;
};

// LibTorch's devices: CPU is host memory, GPU:i is cuda:i.
COHORT_API const std::shared_ptr<const DeviceMemory>& libtorch_memory();

}  // namespace cohort::input
