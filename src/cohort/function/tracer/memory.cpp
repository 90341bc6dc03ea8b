// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/tracer/memory.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace cohort::function {
namespace {

struct Known {
  Mutex mutex;
  // A weak reference keeps the address from being used again.
  std::unordered_map<const c10::StorageImpl*, ExampleMemory> memories COHORT_GUARDED_BY(mutex);
};

// Never destroyed, because tensors of static variables may be destroyed later.
Known& known() {
  static Known& known = *new Known;
  return known;
}

}  // namespace

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

void release_graphs(const std::vector<at::Tensor>& tensors) {
  using Node = decltype(torch::autograd::Edge::function);  // another pointer in LibTorch 2
  std::vector<Node> nodes;
  std::unordered_set<const torch::autograd::Node*> seen;
  const auto visit = [&](const Node& node) {
    if (node && seen.insert(node.get()).second) nodes.push_back(node);
  };
  for (const at::Tensor& tensor : tensors) {
    // grad_fn() would make a new node for a view, or throw.
    const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
    if (meta != nullptr) visit(meta->grad_fn_);
  }
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (const torch::autograd::Edge& edge : nodes[i]->next_edges()) visit(edge.function);
  }
  for (const Node& node : nodes) node->release_variables();
}

void note_escaped(std::vector<ExampleMemory> escaped) {
  Known& all = known();
  const Lock lock(all.mutex);
  std::erase_if(all.memories, [](const auto& entry) { return !entry.second.is_alive(); });
  for (ExampleMemory& one : escaped) {
    const c10::StorageImpl* storage = one.storage._unsafe_get_target();
    all.memories.insert_or_assign(storage, std::move(one));
  }
}

std::string origin_of_escaped(const c10::StorageImpl* storage) {
  Known& all = known();
  const Lock lock(all.mutex);
  const auto found = all.memories.find(storage);
  return found == all.memories.end() ? "" : origin_of(found->second);
}

std::string origin_of(const ExampleMemory& memory) {
  return memory.maker.empty() ? "it is an argument or an element there" : memory.maker + " made it";
}

}  // namespace cohort::function
