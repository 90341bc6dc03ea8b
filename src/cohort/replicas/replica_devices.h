// SPDX-License-Identifier: Apache-2.0
// The LibTorch devices of a strategy's replicas.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Stream.h>

#include <vector>

#include "cohort/core/device.h"

namespace cohort::internal {

// GPU:1 is cuda:1. Each CPU:n is the one CPU.
c10::Device torch_device(const Device& device);

// The tensor itself if it is there, else a copy of it, through which gradients flow.
at::Tensor on_device(const at::Tensor& tensor, c10::Device device);

// While it exists, the device is the current one of this thread if it is a GPU.
class DeviceScope {
 public:
  explicit DeviceScope(c10::Device device) {
    if (!device.is_cpu()) guard_.reset_device(device);
  }

 private:
  c10::OptionalDeviceGuard guard_;
};

// The streams that are current on this thread, one for each of the devices that is a GPU. All
// replicas of a run use those of the thread that begins it. So what one replica computes on a GPU
// comes before what another one, or a merge, does with the result: work in one stream has the order
// in which it was given, and copies between GPUs wait for both streams.
std::vector<c10::Stream> current_streams(const std::vector<c10::Device>& devices);

}  // namespace cohort::internal
