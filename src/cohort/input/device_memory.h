// SPDX-License-Identifier: Apache-2.0
// Where values live: copying them to a device. Tests put a device of their own in its place.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "cohort/core/device.h"
#include "cohort/core/export.h"

namespace cohort {

// Thread-safe.
class COHORT_API DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  // The device reads host memory: nothing is copied to it, and nothing ahead.
  virtual bool is_host(const Device& device) const = 0;
  // A copy of a tensor of host memory; the copying may go on behind the caller's back, in the order
  // of the device's work. Not for strings.
  virtual at::Tensor copy(const at::Tensor& tensor, const Device& device) const = 0;
};

// LibTorch's devices: CPU is host memory, GPU:i is cuda:i.
COHORT_API const std::shared_ptr<const DeviceMemory>& libtorch_memory();

}  // namespace cohort
