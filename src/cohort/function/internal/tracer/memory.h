// SPDX-License-Identifier: Apache-2.0
// Which memory was allocated since a trace began, as LibTorch's allocator reports it.
#pragma once

#include <c10/core/Allocator.h>
#include <torch/version.h>

#include <cstddef>
#include <map>

#include "cohort/core/mutex.h"

namespace cohort::function {

// A tensor in memory that is younger than the trace, but that no recorded op made, comes from code
// the trace did not see. Thread-safe: LibTorch hands the installed object on to the threads it
// starts.
class MemoryWatch final : public c10::MemoryReportingInfoBase {
 public:
  // `address` lies in a live block allocated while this object was installed.
  bool is_young(const void* address) const;

#if TORCH_VERSION_MAJOR >= 2
  using Total = std::size_t;
#else
  using Total = std::int64_t;
#endif
  void reportMemoryUsage(void* address, std::int64_t bytes, Total allocated, Total reserved,
                         c10::Device device) override;
  bool memoryProfilingEnabled() const override { return true; }

 private:
  mutable Mutex mutex_;
  // Start and end of the live blocks.
  std::map<const std::byte*, const std::byte*> blocks_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::function
