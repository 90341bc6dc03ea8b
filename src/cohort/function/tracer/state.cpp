// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/tracer/state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include "cohort/core/log.h"
#include "cohort/function/tracer/content_hash.h"
#include "cohort/function/tracer/key.h"

namespace cohort::function {

at::Tensor whole_memory(const at::Tensor& tensor) {
  auto bytes = static_cast<std::int64_t>(tensor.storage().nbytes());
  auto element = static_cast<std::int64_t>(tensor.element_size());
  at::Tensor flat = at::empty({0}, tensor.options().requires_grad(false));
  return flat.set_(tensor.storage(), 0, {bytes / element}, {1});
}

namespace {

// A larger variable may be a table without pages in memory, which a change of all values would
// bring in. Some parts of it change, so that a sum or a search over it still differs.
constexpr std::int64_t kWholeBytesMax = std::int64_t{64} << 20;
constexpr std::int64_t kPartBytes = std::int64_t{64} << 10;
constexpr std::int64_t kParts = 16;

std::vector<at::Tensor> parts_to_change(at::Tensor flat) {
  const auto bytes = static_cast<std::int64_t>(flat.nbytes());
  if (bytes <= kWholeBytesMax) return {std::move(flat)};
  const std::int64_t size = kPartBytes / static_cast<std::int64_t>(flat.element_size());
  const std::int64_t last = flat.numel() - size;
  std::vector<at::Tensor> parts;
  for (std::int64_t i = 0; i < kParts; ++i)
    parts.push_back(flat.narrow(0, last / (kParts - 1) * i, size));
  return parts;
}

}  // namespace

StateKeeper::StateKeeper() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  std::lock_guard<std::mutex> lock(generator.mutex());
  Untraced untraced;
  generator_state_ = generator.get_state();  // clone() leaks its memory
}

StateKeeper::~StateKeeper() {
  // Nothing here allocates or can meet a wrong shape; a failure would leave the state of a failed
  // trace behind.
  try {
    drop_graphs();
    Untraced untraced;
    for (const Memory& kept : memories_) {
      const at::Tensor &tensor = kept.tensor, &memory = kept.alias;
      const bool is_kept = tensor.is_alias_of(memory) && tensor.sizes() == memory.sizes() &&
                           tensor.strides() == memory.strides();
      if (!is_kept) tensor.set_data(memory);
    }
    for (const Contents& saved : contents_) saved.memory.copy_(saved.copy);
    for (const Changed& one : changed_) toggle(one.memory, one.how);
    for (const Gradient& hidden : gradients_) hidden.leaf.mutable_grad() = hidden.gradient;
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(generator_state_);
  } catch (const std::exception& error) {
    log_error("[function.trace] could not put the state back: ", error.what());
  }
}

// A buffer keeps the graph of the values that were written to it.
void StateKeeper::drop_graphs() const {
  const c10::impl::ExcludeDispatchKeyGuard off(kTraceKey);
  for (const Memory& kept : memories_) {
    if (kept.was_leaf && !kept.tensor.is_leaf() && !kept.tensor.is_view()) kept.tensor.detach_();
  }
}

std::uint64_t StateKeeper::random_state() const {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  std::lock_guard<std::mutex> lock(generator.mutex());
  Untraced untraced;
  const at::Tensor state = generator.get_state();
  return hash_of({static_cast<const std::byte*>(state.data_ptr()), state.nbytes()});
}

void StateKeeper::reseed_default_generator() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(generator.current_seed() + 0x9e3779b97f4a7c15);
}

void StateKeeper::save_contents(const at::Tensor& tensor) {
  const void* storage = tensor.storage().unsafeGetStorageImpl();
  if (!seen_.insert(storage).second) return;
  Untraced untraced;
  at::Tensor memory = whole_memory(tensor);
  contents_.push_back({memory, memory.clone()});
}

void StateKeeper::change_values(const at::Tensor& tensor, Change how) {
  if (!tensor.has_storage() || !tensor.device().is_cpu() || !tensor.is_non_overlapping_and_dense())
    return;
  if (!changed_storages_.insert(tensor.storage().unsafeGetStorageImpl()).second) return;
  Untraced untraced;
  for (at::Tensor& part : parts_to_change(whole_memory(tensor))) {
    toggle(part, how);
    changed_.push_back({std::move(part), how});
  }
}

void StateKeeper::keep_memory(const at::Tensor& tensor) {
  Untraced untraced;
  memories_.push_back({tensor, tensor.detach(), tensor.is_leaf()});
}

std::vector<at::Tensor> StateKeeper::leaves_with_gradients() const {
  std::vector<at::Tensor> leaves;
  for (const Gradient& hidden : gradients_) {
    if (hidden.leaf.grad().defined()) leaves.push_back(hidden.leaf);
  }
  return leaves;
}

void StateKeeper::hide_gradient(const at::Tensor& leaf) {
  if (!seen_.insert(leaf.unsafeGetTensorImpl()).second) return;
  if (!leaf.requires_grad() || !leaf.is_leaf()) return;
  gradients_.push_back({leaf, leaf.grad()});
  leaf.mutable_grad() = at::Tensor();
}

}  // namespace cohort::function
