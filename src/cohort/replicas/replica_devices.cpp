// SPDX-License-Identifier: Apache-2.0
#include "cohort/replicas/replica_devices.h"

#include <ATen/core/TensorBody.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace cohort::internal {

c10::Device torch_device(const Device& device) {
  if (device.type != "GPU") return at::kCPU;
  return {at::kCUDA, static_cast<c10::DeviceIndex>(device.index)};
}

at::Tensor on_device(const at::Tensor& tensor, c10::Device device) {
  return tensor.device() == device ? tensor : tensor.to(device);
}

std::vector<c10::Stream> current_streams(const std::vector<c10::Device>& devices) {
  std::vector<c10::Stream> streams;
  for (const c10::Device& device : devices) {
    if (!device.is_cpu())
      streams.push_back(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  return streams;
}

}  // namespace cohort::internal
