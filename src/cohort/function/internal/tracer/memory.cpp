// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/internal/tracer/memory.h"

namespace cohort::function {

bool MemoryWatch::is_young(const void* address) const {
  const auto* byte = static_cast<const std::byte*>(address);
  Lock lock(mutex_);
  auto after = blocks_.upper_bound(byte);
  if (after == blocks_.begin()) return false;
  return byte < std::prev(after)->second;
}

void MemoryWatch::reportMemoryUsage(void* address, std::int64_t bytes, Total, Total, c10::Device) {
  const auto* byte = static_cast<const std::byte*>(address);
  Lock lock(mutex_);
  if (bytes > 0) {
    blocks_[byte] = byte + bytes;
  } else {
    blocks_.erase(byte);
  }
}

}  // namespace cohort::function
