// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/internal/interpreter/aliases.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>

namespace cohort::function {
namespace {

// A result may be memory of an argument though the schema does not say so.
constexpr auto kSilentAliases = std::to_array<std::string_view>(
    {"aten::_sparse_coo_tensor_with_dims_and_tensors", "aten::_to_dense", "aten::_to_sparse",
     "aten::_unsafe_view", "aten::lift", "aten::to_dense", "aten::to_sparse"});

// Arguments that are written though the schema does not say so, where argument `switch_index` is
// not false.
struct SilentWrite {
  std::string_view name;
  std::size_t first, last, switch_index;
};
constexpr auto kSilentWrites = std::to_array<SilentWrite>({
    {"aten::batch_norm", 3, 4, 5},
    {"aten::instance_norm", 3, 4, 5},
    {"aten::native_batch_norm", 3, 4, 5},
    {"aten::rrelu_with_noise", 1, 1, 4},
    {"aten::rrelu_with_noise_", 1, 1, 4},
});

template <class Visit>
void for_each_value(const Arg& arg, Visit visit) {
  if (arg.kind == Arg::Kind::value) visit(arg.id);
  for (const int id : arg.ids) {
    if (id != -1) visit(id);
  }
}

bool is_silent_alias(const Op& op, const c10::OperatorHandle& kernel) {
  if (std::binary_search(kSilentAliases.begin(), kSilentAliases.end(), op.name)) return true;
  // Composites are free to return an argument as it is.
  return kernel.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

}  // namespace

AliasClasses::AliasClasses(int value_count)
    : parents_(static_cast<std::size_t>(value_count)),
      sizes_(parents_.size(), 1),
      last_writes_(parents_.size(), -1) {
  std::iota(parents_.begin(), parents_.end(), 0);
}

void AliasClasses::add(const Op& op, const c10::OperatorHandle& kernel, int position) {
  const auto& arguments = kernel.schema().arguments();
  const auto& returns = kernel.schema().returns();
  const bool is_silent = is_silent_alias(op, kernel);
  std::vector<int> shared;
  for (std::size_t i = 0; i < op.args.size(); ++i) {
    const c10::AliasInfo* alias = arguments[i].alias_info();
    if (alias != nullptr || is_silent) {
      for_each_value(op.args[i], [&](int id) { shared.push_back(id); });
    }
    if (alias != nullptr && alias->isWrite()) mark_written(op.args[i], position);
  }
  for (std::size_t i = 0; i < op.outs.size(); ++i) {
    if (returns[i].alias_info() == nullptr && !is_silent) continue;
    for (const int out : op.outs[i].ids) {
      if (out == -1) continue;
      for (const int id : shared) unite(out, id);
    }
  }
  for (const SilentWrite& write : kSilentWrites) {
    if (write.name != op.name || write.switch_index >= op.args.size()) continue;
    if (op.args[write.switch_index].kind == Arg::Kind::boolean_false) continue;
    for (std::size_t i = write.first; i <= write.last; ++i) mark_written(op.args[i], position);
  }
}

int AliasClasses::root(int id) const {
  while (parents_[static_cast<std::size_t>(id)] != id) id = parents_[static_cast<std::size_t>(id)];
  return id;
}

// The smaller class joins the larger one, so that paths stay short.
void AliasClasses::unite(int a, int b) {
  auto small = static_cast<std::size_t>(root(a));
  auto large = static_cast<std::size_t>(root(b));
  if (small == large) return;
  if (sizes_[small] > sizes_[large]) std::swap(small, large);
  parents_[small] = static_cast<int>(large);
  sizes_[large] += sizes_[small];
  last_writes_[large] = std::max(last_writes_[large], last_writes_[small]);
}

void AliasClasses::mark_written(int id, int position) {
  int& last = last_writes_[static_cast<std::size_t>(root(id))];
  last = std::max(last, position);
}

void AliasClasses::mark_written(const Arg& arg, int position) {
  for_each_value(arg, [&](int id) { mark_written(id, position); });
}

}  // namespace cohort::function
