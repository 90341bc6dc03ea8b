// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/interpreter/output_memory.h"

#include <algorithm>
#include <functional>

#include "cohort/function/program/work.h"

namespace cohort::function {
namespace {

// Equal for tensors that share memory. Tensors without elements, or without a storage, share
// nothing but themselves.
const void* memory_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  if (tensor.has_storage() && tensor.storage().data() != nullptr)
    return tensor.storage().unsafeGetStorageImpl();
  return tensor.unsafeGetTensorImpl();
}

bool is_less(const void* a, const void* b) {
  ++work_of_thread().comparisons;
  return std::less<>()(a, b);
}

}  // namespace

OutputMemory::OutputMemory(std::span<const at::Tensor> outputs) {
  entries_.reserve(outputs.size());
  for (const at::Tensor& output : outputs) {
    if (output.defined()) entries_.push_back({memory_of(output), false});
  }
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) { return is_less(a.memory, b.memory); });
  const auto is_equal = [](const Entry& a, const Entry& b) { return a.memory == b.memory; };
  entries_.erase(std::unique(entries_.begin(), entries_.end(), is_equal), entries_.end());
}

std::vector<OutputMemory::Entry>::const_iterator OutputMemory::find(
    const at::Tensor& tensor) const {
  const void* const memory = memory_of(tensor);
  const auto found = std::lower_bound(
      entries_.begin(), entries_.end(), memory,
      [](const Entry& entry, const void* wanted) { return is_less(entry.memory, wanted); });
  return found != entries_.end() && found->memory == memory ? found : entries_.end();
}

void OutputMemory::note_foreign(const at::Tensor& tensor) {
  const auto found = find(tensor);
  if (found != entries_.end())
    entries_[static_cast<std::size_t>(found - entries_.begin())].is_foreign = true;
}

bool OutputMemory::is_foreign(const at::Tensor& output) const {
  const auto found = find(output);
  return found != entries_.end() && found->is_foreign;
}

}  // namespace cohort::function
