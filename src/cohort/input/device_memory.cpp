// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/device_memory.h"

#include <ATen/core/TensorBody.h>

#include "cohort/core/error.h"

namespace cohort::input {
namespace {

class LibtorchMemory final : public DeviceMemory {
 public:
  bool is_host(const Device& device) const override { return device.type == "CPU"; }
  at::Tensor copy(const at::Tensor& tensor, const Device& device) const override {
    COHORT_CHECK(device.type == "GPU", ErrorCode::unimplemented,
                 "[input.fetch] expected a CPU or a GPU to copy to, got ", device.to_string());
    const at::Device target(at::kCUDA, static_cast<at::DeviceIndex>(device.index));
    return tensor.to(tensor.options().device(target), /*non_blocking=*/true);
  }
};

}  // namespace

const std::shared_ptr<const DeviceMemory>& libtorch_memory() {
  static const std::shared_ptr<const DeviceMemory> memory = std::make_shared<LibtorchMemory>();
  return memory;
}

}  // namespace cohort::input
