// SPDX-License-Identifier: Apache-2.0
// Memory that a trace does not record: blocks that were allocated since it began, as LibTorch's
// allocator reports them; and tensors that traced steps have stored outside of themselves, which
// have the values of an example and which no call changes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/version.h>

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "cohort/core/mutex.h"

namespace cohort::function {

// If a tensor's memory is younger than the trace but no recorded op made it, it comes from code
// that the trace did not see. Thread-safe: LibTorch passes the installed object to the threads that
// it starts.
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

// Releases the tensors that the autograd graphs of these tensors have saved. If a tensor was
// written with a view of itself, its graph holds the tensor, and LibTorch would never free them.
void release_graphs(const std::vector<at::Tensor>& tensors);

// Memory with values that come from the example of a pass. A value type.
struct ExampleMemory {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  std::string maker;  // "aten::mul"; empty: the example itself

  bool is_alive() const { return storage.use_count() > 0; }
};

// Registers these memories until they are freed. Thread-safe.
void note_escaped(std::vector<ExampleMemory> escaped);

// The origin of this memory, for messages; empty if it has not escaped from a trace. Thread-safe.
std::string origin_of_escaped(const c10::StorageImpl* storage);

// "aten::mul made it", or that it is part of the example.
std::string origin_of(const ExampleMemory& memory);

}  // namespace cohort::function
