// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/tracer/ops.h"

#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <array>

#include "cohort/function/generator_argument.h"
#include "cohort/function/program/op_memory.h"

namespace cohort::function {
namespace {

using c10::DispatchKey;

constexpr std::array<std::string_view, 20> kMetadataQueries = {
    "aten::is_same_size",  "aten::is_pinned",
    "aten::can_cast",      "aten::is_coalesced",
    "aten::sparse_dim",    "aten::dense_dim",
    "aten::_dimI",         "aten::_dimV",
    "aten::is_set_to",     "aten::result_type",
    "aten::is_complex",    "aten::is_floating_point",
    "aten::is_signed",     "aten::is_inference",
    "aten::is_conj",       "aten::is_neg",
    "aten::_version",      "aten::_is_zerotensor",
    "aten::promote_types", "aten::_has_compatible_shallow_copy_type"};

// Older versions tag only some of these with dynamic_output_shape.
constexpr std::array<std::string_view, 8> kDynamicShapes = {
    "aten::nonzero",  "aten::masked_select", "aten::_unique", "aten::_unique2",
    "aten::bincount", "aten::unique_dim",    "aten::_nnz",    "aten::unique_consecutive"};

// LibTorch 2 also tags the overload that takes the lengths as lists, which are in the program.
bool has_sizes_of_lists(const c10::OperatorName& op) {
  return op.name == "aten::_ctc_loss" && op.overload_name.empty();
}

constexpr std::array<std::string_view, 12> kOverwriters = {
    "aten::fill_",    "aten::zero_",      "aten::copy_",       "aten::normal_",
    "aten::uniform_", "aten::bernoulli_", "aten::random_",     "aten::exponential_",
    "aten::cauchy_",  "aten::geometric_", "aten::log_normal_", "aten::eye_"};

constexpr std::array<std::string_view, 12> kFillable = {
    "aten::zeros",    "aten::zeros_like", "aten::ones",     "aten::ones_like",
    "aten::full",     "aten::full_like",  "aten::new_full", "aten::new_zeros",
    "aten::new_ones", "aten::eye",        "aten::arange",   "aten::scalar_tensor"};

struct HostRead {
  std::string_view name;
  std::string_view overload;
  std::size_t index;
};

// Composite operators that read their arguments with data_ptr() or accessor(), which the trace
// cannot see; and operators whose results have sizes that depend on such reads.
constexpr std::array<HostRead, 12> kHostReads = {{
    {"aten::ctc_loss", "Tensor", 2},
    {"aten::ctc_loss", "Tensor", 3},
    {"aten::tensor_split", "tensor_indices_or_sections", 1},
    {"aten::repeat_interleave", "Tensor", 0},
    {"aten::_pack_padded_sequence", "", 1},
    {"aten::_pack_padded_sequence_backward", "", 2},
    {"aten::_pad_packed_sequence", "", 1},
    {"aten::lstm", "data", 1},
    {"aten::gru", "data", 1},
    {"aten::rnn_tanh", "data", 1},
    {"aten::rnn_relu", "data", 1},
    {"aten::sparse_coo_tensor", "indices", 0},
}};

constexpr std::array<std::string_view, 3> kSizesOfData = {"aten::_coalesce", "aten::to_sparse",
                                                          "aten::_to_sparse"};
constexpr std::array<std::string_view, 4> kParts = {"aten::_values", "aten::_indices",
                                                    "aten::values", "aten::indices"};

bool has_generator_argument(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  return std::any_of(arguments.begin(), arguments.end(), is_generator);
}

bool is_seeded(const c10::OperatorHandle& op) {
  return op.hasTag(at::Tag::nondeterministic_seeded);
}

bool contains(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

bool is_mask(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) return false;
  const c10::ScalarType dtype = value.toTensor().scalar_type();
  return dtype == c10::kBool || dtype == c10::kByte;
}

bool decomposes(const c10::OperatorHandle& op, c10::DispatchKeySet keys) {
  // A random op without a generator argument (rand, randperm) calls one that has it. That one is
  // recorded, so that the seed of a run reaches it.
  if (is_seeded(op) && !has_generator_argument(op.schema())) return true;
  auto backend = keys.highestBackendKey();
  if (backend == c10::BackendComponent::InvalidBit) backend = c10::BackendComponent::CPUBit;
  // This follows the dispatcher's precedence. A kernel under the alias Autograd does not count.
  auto own = c10::toRuntimePerBackendFunctionalityKey(DispatchKey::Dense, backend);
  auto autograd =
      c10::toRuntimePerBackendFunctionalityKey(DispatchKey::AutogradFunctionality, backend);
  return op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(own) && !op.hasKernelForDispatchKey(autograd) &&
         !op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd);
}

bool is_metadata_query(std::string_view name) { return contains(kMetadataQueries, name); }

bool returns_host_value(const c10::FunctionSchema& schema) {
  const auto& returns = schema.returns();
  return std::any_of(returns.begin(), returns.end(), [](const c10::Argument& result) {
    return !result.type()->isSubtypeOf(*c10::TensorType::get()) &&
           !result.type()->isSubtypeOf(*c10::ListType::ofTensors());
  });
}

bool has_dynamic_shape(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments) {
  const std::string& name = op.operator_name().name;
  if (name == "aten::index" && arguments.size() > 1 && arguments[1].isList()) {
    auto indices = arguments[1].toListRef();
    return std::any_of(indices.begin(), indices.end(), is_mask);
  }
  if (has_sizes_of_lists(op.operator_name())) return false;
  return contains(kDynamicShapes, name) || op.hasTag(at::Tag::dynamic_output_shape);
}

bool is_random(const c10::OperatorHandle& op) {
  return is_seeded(op) || has_generator_argument(op.schema());
}

bool writes_argument(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments,
                     std::size_t index) {
  const c10::AliasInfo* alias = op.schema().arguments()[index].alias_info();
  if (alias != nullptr && alias->isWrite()) return true;
  const auto flag = hidden_write(op.operator_name().name, index);
  if (!flag || *flag == kAlways) return flag.has_value();
  const c10::IValue& value = arguments[static_cast<std::size_t>(*flag)];
  return value.isBool() && value.toBool();
}

bool changes_shape_only(const c10::OperatorHandle& op) { return op.hasTag(at::Tag::inplace_view); }

bool may_reshape_argument(const c10::OperatorHandle& op, std::size_t index) {
  const c10::Argument& argument = op.schema().arguments()[index];
  const bool is_written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  return is_written && (changes_shape_only(op) || argument.is_out());
}

bool only_views_argument(const c10::OperatorHandle& op, std::size_t index) {
  const c10::AliasInfo* alias = op.schema().arguments()[index].alias_info();
  return alias != nullptr && !alias->isWrite();
}

bool overwrites_argument(const c10::OperatorHandle& op, std::size_t index) {
  if (op.schema().arguments()[index].is_out()) return true;
  return index == 0 && contains(kOverwriters, op.operator_name().name);
}

bool makes_unwritten_memory(std::string_view name) {
  return name.starts_with("aten::empty") || name.starts_with("aten::new_empty");
}

bool makes_memory_to_fill(std::string_view name) {
  return makes_unwritten_memory(name) || contains(kFillable, name);
}

bool reads_on_host(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments,
                   std::size_t index) {
  const c10::OperatorName& name = op.operator_name();
  const bool is_listed =
      std::any_of(kHostReads.begin(), kHostReads.end(), [&](const HostRead& row) {
        return row.index == index && row.name == name.name && row.overload == name.overload_name;
      });
  // If the size is given, the kernel only checks it.
  const bool has_size =
      name.name == "aten::repeat_interleave" && arguments.size() > 1 && !arguments[1].isNone();
  return is_listed && !has_size;
}

int source_of_result(const c10::OperatorHandle& op, std::size_t result) {
  return result == 1 && op.operator_name().name == "aten::_pack_padded_sequence" ? 1 : -1;
}

bool has_size_of_data(const c10::OperatorHandle& op) {
  return contains(kSizesOfData, op.operator_name().name);
}

bool takes_sparse_apart(const c10::OperatorHandle& op) {
  return contains(kParts, op.operator_name().name);
}

void canonicalise(Op& op) {
  if (op.name == "aten::_reshape_alias" && op.args.size() == 3) {
    op.name = "aten::view";
    op.args.pop_back();
  } else if (op.name == "aten::_index_put_impl_" && op.args.size() == 5) {
    op.name = "aten::index_put_";
    op.args.pop_back();
  }
}

}  // namespace cohort::function
