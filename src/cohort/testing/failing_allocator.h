// SPDX-License-Identifier: Apache-2.0
// Makes LibTorch's tensor allocation fail, in tests.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/CPUAllocator.h>
#include <torch/version.h>

#include <cstring>
#include <new>

namespace cohort::testing {

// Thread-safe; a limit applies only to the thread that sets it.
class FailingAllocator final : public c10::Allocator {
 public:
  // While it exists, the calling thread can allocate `count` tensors; further allocations throw
  // std::bad_alloc.
  class After {
   public:
    explicit After(int count) {
      static const bool is_installed = [] {
        c10::SetCPUAllocator(new FailingAllocator, /*priority=*/200);
        return true;
      }();
      (void)is_installed;
      left() = count;
    }
    ~After() { left() = -1; }
    After(const After&) = delete;
    After& operator=(const After&) = delete;
  };

#if TORCH_VERSION_MAJOR >= 2
  c10::DataPtr allocate(std::size_t bytes) override { return take(bytes); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
#else
  c10::DataPtr allocate(std::size_t bytes) const override { return take(bytes); }
#endif
  c10::DeleterFnPtr raw_deleter() const override {
    return c10::GetDefaultCPUAllocator()->raw_deleter();
  }

 private:
  // -1: no limit.
  static int& left() {
    static thread_local int left = -1;
    return left;
  }
  static c10::DataPtr take(std::size_t bytes) {
    if (left() == 0) throw std::bad_alloc();
    if (left() > 0) --left();
    return c10::GetDefaultCPUAllocator()->allocate(bytes);
  }
};

}  // namespace cohort::testing
