// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/module_memory.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "cohort/core/error.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/function/local_tensors.h"

namespace cohort::internal {
namespace {

const void* storage_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl()
                                                  : nullptr;
}

// Two storages of from_blob() may have one memory.
const void* memory_of(const at::Tensor& tensor) {
  return storage_of(tensor) == nullptr ? nullptr : tensor.storage().data();
}

// Has several elements in one place, into which LibTorch does not copy.
bool is_expanded(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return false;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) > 1 && tensor.stride(i) == 0) return true;
  }
  return false;
}

// Whether the memory has users other than this tensor and the one that autograd keeps because this
// is a view of it.
bool has_other_users(const at::Tensor& tensor) {
  const bool has_base = tensor.is_view() && tensor._base().is_alias_of(tensor);
  const bool is_only_view = has_base && tensor._base().use_count() == 1;
  return tensor.storage().use_count() > (is_only_view ? 2U : 1U);
}

// How many of the tensors have each storage.
std::unordered_map<const void*, std::size_t> counts_of_storages(
    const std::vector<NamedTensor>& tensors) {
  std::unordered_map<const void*, std::size_t> counts;
  for (const NamedTensor& each : tensors) ++counts[storage_of(each.tensor)];
  return counts;
}

// Gives tensors memory of their own. Tensors that share memory do so afterwards, too.
class NewMemory {
 public:
  // `counts`: of all tensors that may be given to move().
  explicit NewMemory(const std::unordered_map<const void*, std::size_t>& counts)
      : counts_(counts) {}

  void move(at::Tensor tensor) {
    const c10::NoGradGuard no_grad;
    const void* const storage = storage_of(tensor);
    if (counts_.at(storage) == 1) return tensor.set_data(tensor.detach().clone());
    at::Tensor& bytes = bytes_[storage];
    if (!bytes.defined()) {
      const auto size = static_cast<std::int64_t>(tensor.storage().nbytes());
      bytes = at::empty({0}, tensor.options().dtype(at::kByte))
                  .set_(tensor.storage(), 0, {size}, {1})
                  .clone();
    }
    tensor.set_data(
        at::empty({0}, tensor.options())
            .set_(bytes.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides()));
  }

 private:
  const std::unordered_map<const void*, std::size_t>& counts_;
  std::unordered_map<const void*, at::Tensor> bytes_;  // the copies, by the old storage
};

// The tensors of other modules, which must not change with those of a new one.
class OtherTensors {
 public:
  void add(const std::vector<NamedTensor>& tensors) {
    for (const NamedTensor& each : tensors) {
      tensors_.insert(each.tensor.unsafeGetTensorImpl());
      if (const void* memory = memory_of(each.tensor)) memory_.insert(memory);
    }
  }
  // That they had before. It may have been freed, and be another tensor's now.
  void add_former(const std::vector<const void*>& memory) {
    for (const void* each : memory) {
      if (each != nullptr) former_.insert(each);
    }
  }

  // A call that runs the factory.
  struct Call {
    std::string_view name;
    std::string_view remedy = {};
    bool separates_from_variables = false;  // else it refuses memory of other variables
  };
  void separate(const Call& call, const std::vector<NamedTensor>& made) const {
    const auto counts = counts_of_storages(made);
    std::vector<at::Tensor> shared;
    for (const NamedTensor& each : made) {
      if (memory_of(each.tensor) == nullptr) continue;
      const auto owner = function::local_owner_of(each.tensor);
      check_is_new(call, each, owner);
      if (owner || has_memory_of(each.tensor, counts)) shared.push_back(each.tensor);
    }
    NewMemory memory(counts);
    for (const at::Tensor& each : shared) memory.move(each);
  }

 private:
  void check_is_new(const Call& call, const NamedTensor& each,
                    const std::optional<function::LocalOwner>& owner) const {
    const bool is_other = tensors_.contains(each.tensor.unsafeGetTensorImpl());
    COHORT_CHECK(!is_other && !(owner && owner->is_same_tensor), ErrorCode::invalid_argument,
                 "[strategy.", call.name,
                 "] expected new parameters and buffers from each call of the factory that "
                 "replicate() got, got '",
                 each.name, "' again",
                 is_other ? std::string() : ", which is variable '" + owner->name + "'",
                 ": the factory registers a tensor that it has captured, or a module that has it; "
                 "register a clone() of the captured tensor, and make modules inside the factory",
                 call.remedy);
    COHORT_CHECK(
        !owner || call.separates_from_variables || memory_.contains(memory_of(each.tensor)),
        ErrorCode::already_exists, "[strategy.", call.name, "] expected a parameter or buffer '",
        each.name, "' with memory of its own, got that of variable '", owner->name,
        "'; clone() the tensor that the factory has captured");
  }

  bool has_memory_of(const at::Tensor& tensor,
                     const std::unordered_map<const void*, std::size_t>& counts) const {
    const void* const memory = memory_of(tensor);
    const bool is_of_others = tensor.storage().use_count() > counts.at(storage_of(tensor));
    return memory_.contains(memory) || (is_of_others && former_.contains(memory));
  }

  std::unordered_set<const void*> tensors_, memory_, former_;
};

[[noreturn]] void refuse_one_memory(const std::string& variable, std::size_t replica,
                                    std::size_t other) {
  throw_error(ErrorCode::failed_precondition,
              "[strategy.run] expected memory of its own for each replica's tensor of variable '",
              variable, "', got one memory for replicas ", replica, " and ", other,
              ", to which set_data() has given one tensor, or parts of one; call "
              "set_data(value.clone()) in each replica, or Variable::assign()");
}

// The first parameters or buffers in which two modules of one factory differ, for messages; nullopt
// if they do not.
struct ModuleDifference {
  std::string first, other;
};
std::optional<ModuleDifference> difference_of_modules(const std::vector<NamedTensor>& first,
                                                      const std::vector<NamedTensor>& other,
                                                      bool compares_training) {
  const auto is_same = [&](const NamedTensor& a, const NamedTensor& b) {
    return a.name == b.name && (!compares_training || a.is_trainable == b.is_trainable) &&
           TensorSpec::of(a.tensor) == TensorSpec::of(b.tensor);
  };
  const auto different = std::ranges::mismatch(first, other, is_same).in1;
  const auto i = static_cast<std::size_t>(different - first.begin());
  if (i == first.size() && i == other.size()) return std::nullopt;
  const auto text = [&](const std::vector<NamedTensor>& tensors) {
    if (i >= tensors.size()) return std::to_string(tensors.size()) + " parameters and buffers";
    const bool is_frozen = !tensors[i].is_buffer && !tensors[i].is_trainable;
    return "'" + tensors[i].name + "' " + TensorSpec::of(tensors[i].tensor).to_string() +
           (is_frozen ? ", which is frozen," : "");
  };
  return ModuleDifference{text(first), text(other)};
}

// The factory may depend on what the program has changed since replicate().
void check_is_same_module(const std::vector<NamedTensor>& made, const ModuleUse& live) {
  const std::optional<ModuleDifference> difference =
      difference_of_modules(live.made_of, made, /*compares_training=*/false);
  if (!difference) return;
  throw_error(ErrorCode::failed_precondition, "[strategy.snapshot] expected that the factory of '",
              live.name, "' makes the module that it made in replicate(), with ", difference->first,
              ", got ", difference->other,
              "; has something that it captures changed since? save_values() saves the values");
}

}  // namespace

std::vector<const void*> memory_of(const std::vector<NamedTensor>& tensors) {
  std::vector<const void*> memory;
  memory.reserve(tensors.size());
  for (const NamedTensor& each : tensors) memory.push_back(memory_of(each.tensor));
  return memory;
}

void make_row_major(const std::vector<NamedTensor>& tensors) {
  for (const NamedTensor& each : tensors) {
    at::Tensor tensor = each.tensor;
    const bool is_dense = tensor.defined() && tensor.layout() == at::kStrided;
    if (!is_dense || tensor.is_contiguous()) continue;
    COHORT_CHECK(!is_expanded(tensor) || !has_other_users(tensor), ErrorCode::invalid_argument,
                 "[strategy.replicate] expected memory for each element of ",
                 each.is_buffer ? "buffer" : "parameter", " '", each.name,
                 "', got that expand() shows one element several times, and that another tensor "
                 "has this memory, too; register expand(…).clone()");
    tensor.set_data(tensor.detach().contiguous());
  }
}

void make_independent(const std::vector<NamedTensor>& made,
                      const std::vector<std::shared_ptr<ModuleUse>>& live) {
  if (!live.empty()) check_is_same_module(made, *live.front());
  OtherTensors others;
  for (const auto& module : live) {
    others.add(module->made_of);
    others.add_former(module->first_memory);
  }
  others.separate({.name = "snapshot",
                   .remedy = ". Until then, save_values() saves the values",
                   .separates_from_variables = true},
                  made);
  for (const NamedTensor& each : made) {
    at::Tensor tensor = each.tensor;
    const bool is_dense = tensor.defined() && tensor.layout() == at::kStrided;
    if (is_dense && is_expanded(tensor)) tensor.set_data(tensor.detach().contiguous());
  }
}

void make_alike(const std::vector<std::vector<NamedTensor>>& copies) {
  OtherTensors others;
  for (const std::vector<NamedTensor>& copy : copies) {
    others.separate({.name = "replicate"}, copy);
    others.add(copy);
  }
  for (std::size_t replica = 1; replica < copies.size(); ++replica) {
    const std::optional<ModuleDifference> difference =
        difference_of_modules(copies.at(0), copies[replica], /*compares_training=*/true);
    if (!difference) continue;
    throw_error(ErrorCode::invalid_argument,
                "[strategy.replicate] expected the same module for each replica, got ",
                difference->first, " for replica 0 and ", difference->other, " for replica ",
                replica, "; the factory must not depend on how often it is called");
  }
}

void check_memory_of_replicas(const std::vector<std::shared_ptr<ModuleUse>>& copies,
                              bool shares_parameters) {
  std::unordered_map<const void*, std::size_t> replicas;
  for (const auto& copy : copies) {
    for (std::size_t i = 0; i < copy->made_of.size(); ++i) {
      const NamedTensor& each = copy->made_of[i];
      const void* const memory = memory_of(each.tensor);
      if (memory == nullptr) continue;
      const auto variable = [&] { return copy->name + "/" + each.name; };
      if (shares_parameters && !each.is_buffer) {
        COHORT_CHECK(
            memory == memory_of(copies.front()->made_of.at(i).tensor),
            ErrorCode::failed_precondition,
            "[strategy.run] expected the one memory that all replicas share for variable '",
            variable(), "', got other memory in replica ", copy->replica,
            ", which set_data() has given to it; call Variable::assign()");
        continue;
      }
      const auto known = replicas.emplace(memory, copy->replica).first;
      if (known->second != copy->replica)
        refuse_one_memory(variable(), known->second, copy->replica);
    }
  }
}

void check_memory_of_components(const std::string& variable,
                                const std::vector<at::Tensor>& tensors) {
  for (std::size_t i = 1; i < tensors.size(); ++i) {
    const void* const memory = memory_of(tensors[i]);
    for (std::size_t other = 0; memory != nullptr && other < i; ++other) {
      if (memory_of(tensors[other]) == memory) refuse_one_memory(variable, other, i);
    }
  }
}

bool has_known_storages(const ModuleUse& module) {
  const std::vector<NamedTensor>& tensors = module.made_of;
  return std::ranges::equal(
      tensors, module.known_storages,
      [](const NamedTensor& each, const void* known) { return storage_of(each.tensor) == known; });
}

void note_storages(ModuleUse& module) {
  module.known_storages.clear();
  for (const NamedTensor& each : module.made_of)
    module.known_storages.push_back(storage_of(each.tensor));
}

}  // namespace cohort::internal
