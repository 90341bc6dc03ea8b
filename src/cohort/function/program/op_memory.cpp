// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/program/op_memory.h"

#include <algorithm>
#include <array>

namespace cohort::function {
namespace {

constexpr auto kSilentAliases = std::to_array<std::string_view>(
    {"aten::_sparse_coo_tensor_with_dims_and_tensors", "aten::_to_dense", "aten::_to_sparse",
     "aten::_unsafe_view", "aten::lift", "aten::native_dropout", "aten::to_dense",
     "aten::to_sparse", "aten::unsafe_split", "aten::unsafe_split_with_sizes"});
static_assert(std::is_sorted(kSilentAliases.begin(), kSilentAliases.end()));

struct HiddenWrites {
  std::string_view name;
  std::size_t first, last;
  int flag;
};
constexpr auto kHiddenWrites = std::to_array<HiddenWrites>({
    {"aten::batch_norm", 3, 4, 5},
    {"aten::batch_norm_update_stats", 1, 2, kAlways},
    {"aten::cudnn_batch_norm", 3, 4, 5},
    {"aten::instance_norm", 3, 4, 5},
    {"aten::miopen_batch_norm", 3, 4, 5},
    {"aten::native_batch_norm", 3, 4, 5},
    {"aten::rrelu_with_noise", 1, 1, 4},
    {"aten::rrelu_with_noise_", 1, 1, 4},
});

}  // namespace

std::optional<int> hidden_write(std::string_view name, std::size_t argument) {
  for (const HiddenWrites& row : kHiddenWrites) {
    if (row.name == name && row.first <= argument && argument <= row.last) return row.flag;
  }
  return std::nullopt;
}

bool may_be_alias(const c10::OperatorHandle& op, std::size_t result) {
  if (op.schema().returns()[result].alias_info() != nullptr) return true;
  const std::string& name = op.operator_name().name;
  if (std::binary_search(kSilentAliases.begin(), kSilentAliases.end(), name)) return true;
  // A composite may return an argument itself.
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

}  // namespace cohort::function
