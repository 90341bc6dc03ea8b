// SPDX-License-Identifier: Apache-2.0
// Restores single values: the first process reads each, and all give it to its owner.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <mutex>

#include "cohort/checkpoint/restoring.h"
#include "cohort/core/error.h"
#include "cohort/variable/state_walk.h"

namespace cohort::checkpoint {
namespace {

void set_default_generator(const at::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  try {
    generator.set_state(state);
  } catch (const c10::Error& error) {
    internal::throw_error(ErrorCode::invalid_argument,
                          "[checkpoint.read] expected the state of LibTorch's default generator, "
                          "got one that does not fit: ",
                          error.what_without_backtrace(),
                          "; restore with the LibTorch that has saved it");
  }
}

}  // namespace

// The tensors as the first process reads them, or one part of each.
std::vector<at::Tensor> Restoring::fetch(const std::vector<std::string>& names,
                                         std::optional<std::size_t> part) {
  std::vector<at::Tensor> tensors;
  parts_.exchange("checkpoint", [&] {
    if (!reader_ && !file_) return Bytes();
    for (const std::string& name : names)
      tensors.push_back(file_  ? file_->value(name)
                        : part ? reader_->read_part(name, *part)
                               : reader_->read(name));
    return Bytes();
  });
  if (!reader_ && !file_) {
    for (const std::string& name : names) {
      const TensorEntry& entry = manifest_.tensors.at(name);
      TensorSpec spec = entry.spec;
      if (part && !spec.sizes->empty()) spec.sizes->front() = entry.parts.at(*part).rows;
      tensors.push_back(at::empty(*spec.sizes, at::TensorOptions(spec.dtype)));
    }
  }
  parts_.copy_from_first("checkpoint", tensors);
  for (const std::string& name : names) used_.insert(name);
  return tensors;
}

// The slots of the optimizers that exist. A deferred restore has those of others under the saved
// name until they are made. `part`: of a table.
std::vector<internal::OptimizerSlots> Restoring::fetch_slots(const VariableEntry& saved,
                                                             std::optional<std::size_t> part) {
  const auto is_taken = [&](const std::string& name) {
    return std::ranges::any_of(optimizers_, [&](const auto& each) { return each.second == name; });
  };
  std::vector<internal::OptimizerSlots> all;
  for (const SlotsEntry& slots : saved.slots) {
    const auto known = optimizers_.find(std::pair(slots.optimizer, slots.rule));
    const bool is_known = known != optimizers_.end();
    if (!is_known && (!options_.deferred || is_taken(slots.optimizer))) continue;
    internal::OptimizerSlots& own = all.emplace_back(
        internal::OptimizerSlots{is_known ? known->second : slots.optimizer, slots.rule, {}});
    for (const std::string& name : slots.tensors) {
      const bool has_parts = part && !manifest_.tensors.at(name).spec.sizes->empty();
      own.tensors.push_back(fetch({name}, has_parts ? part : std::optional<std::size_t>()).at(0));
    }
  }
  return all;
}

void Restoring::restore() {
  const c10::NoGradGuard no_grad;
  // First, as they may be refused.
  for (const auto& [name, position] : contents_.positions_) restore_position(name, position);
  for (const auto& [variable, saved] : of_variables_) restore_any(variable, *saved);
  for (const auto& [tensor, saved] : of_tensors_) restore_tensor(tensor, *saved);
  for (const auto& [state, saved] : of_states_) restore_state(*state, *saved);
  for (const auto& [name, value] : contents_.values_) restore_value(name, value);
  restore_generator();
  of_variables_.clear();
  of_tensors_.clear();
  of_states_.clear();
}

void Restoring::restore_any(const Variable& variable, const VariableEntry& saved) {
  saved.is_table() ? restore_table(variable, saved) : restore_variable(variable, saved);
  result_.used.push_back(saved.name);
}

void Restoring::restore_tensor(const at::Tensor& tensor, const VariableEntry& saved) {
  at::Tensor own = tensor;
  own.copy_(fetch({saved.name}).at(0));
  result_.used.push_back(saved.name);
}

void Restoring::restore_state(AttachedState& state, const StateEntry& saved) {
  state.load(bytes_of_tensor(fetch({saved.tensor}).at(0)));
  result_.used.push_back(saved.key);
}

void Restoring::restore_position(const std::string& name, const SavedPosition& position) {
  const auto saved = manifest_.positions.find(name);
  if (saved == manifest_.positions.end()) return;
  position.restore(bytes_of_tensor(fetch({saved->second}).at(0)));
  result_.used.push_back(name);
}

void Restoring::restore_value(const std::string& name, const SavedState& value) {
  const auto saved = manifest_.values.find(name);
  if (saved == manifest_.values.end()) return;
  value.restore(saved->second);
  used_values_.insert(name);
  result_.used.push_back(name);
}

// A deferred restore has given slots to variables under the optimizer's saved name.
void Restoring::rename_slots(const StateEntry& saved, const std::string& own_name) {
  if (saved.optimizer == own_name || saved.rule.empty()) return;
  for (const Variable& variable : contents_.all_variables()) {
    const std::string name = saved_name(variable.name());
    const auto entry = std::ranges::find(manifest_.variables, name, &VariableEntry::name);
    const bool has_slots = entry != manifest_.variables.end() &&
                           std::ranges::any_of(entry->slots, [&](const SlotsEntry& slots) {
                             return slots.optimizer == saved.optimizer && slots.rule == saved.rule;
                           });
    if (!has_slots) continue;
    COHORT_CHECK(!variable.impl()->is_table(), ErrorCode::unimplemented,
                 "[checkpoint.read] expected the optimizer of table '", variable.name(),
                 "', which a deferred restore waits for, under its saved name '", saved.optimizer,
                 "', got '", own_name, "'; give it this name, or make it before read()");
    VariableRecord record = whole_state(std::span(&variable, 1), {}).front();
    for (VariableRecord::Value& value : record.values) {
      for (internal::OptimizerSlots& slots : value.slots)
        if (slots.optimizer == saved.optimizer && slots.rule == saved.rule)
          slots.optimizer = own_name;
    }
    import_state(variable, record);
  }
}

void Restoring::restore_variable(const Variable& variable, const VariableEntry& saved) {
  VariableRecord record{.name = variable.name(), .spec = variable.spec()};
  const std::size_t replicas = parts_.owns(variable) ? parts_.replicas_in_sync() : 1;
  const bool is_by_replica = !saved.replicas.empty() && saved.replicas.size() == replicas;
  const auto slots = fetch_slots(saved);
  for (const std::string& name : saved.replicas) used_.insert(name);
  used_.insert(saved.name);
  const std::vector<std::string> names =
      is_by_replica ? saved.replicas : std::vector<std::string>{saved.name};
  for (at::Tensor& value : fetch(names)) record.values.push_back({std::move(value), slots});
  import_state(variable, record);
}

// The first record replaces what the table has, so there is one also for no rows.
void Restoring::restore_table(const Variable& variable, const VariableEntry& saved) {
  const std::size_t parts = manifest_.tensors.at(saved.keys).parts.size();
  std::int64_t next_row = 0;
  if (parts == 0) {
    std::vector<at::Tensor> none = fetch({saved.keys, saved.name});
    import_state(variable, {.name = variable.name(),
                            .spec = variable.spec(),
                            .values = {{std::move(none[1]), {}}},
                            .keys = std::move(none[0])});
    next_row = 1;
  }
  for (std::size_t part = 0; part < parts; ++part) {
    std::vector<at::Tensor> rows = fetch({saved.keys, saved.name}, part);
    const std::int64_t count = rows[0].numel();
    import_state(variable, {.name = variable.name(),
                            .spec = variable.spec(),
                            .first_row = next_row,
                            .values = {{std::move(rows[1]), fetch_slots(saved, part)}},
                            .keys = std::move(rows[0])});
    next_row += count;
  }
  const std::size_t counted = manifest_.tensors.at(saved.counted_keys).parts.size();
  for (std::size_t part = 0; part < counted; ++part) {
    std::vector<at::Tensor> counts = fetch({saved.counted_keys, saved.counts}, part);
    const std::int64_t count = counts[0].numel();
    import_state(variable, {.name = variable.name(),
                            .spec = variable.spec(),
                            .first_row = next_row,
                            .values = {{std::move(counts[1]), {}}},
                            .keys = std::move(counts[0]),
                            .is_of_counts = true});
    next_row += count;
  }
  used_.insert(saved.counted_keys);
  used_.insert(saved.counts);
}

// The generators of all workers go on alike unless the program has seeded them differently.
void Restoring::restore_generator() {
  if (manifest_.generators.empty()) return;
  const at::Tensor first = fetch({manifest_.generators.front()}).at(0);
  std::vector<at::Tensor> others;
  const bool is_of_each = manifest_.generators.size() == processes_;
  if (is_of_each && processes_ > 1) others = fetch(manifest_.generators);
  set_default_generator(others.empty() ? first
                                       : others.at(static_cast<std::size_t>(parts_.process())));
  used_.insert(manifest_.generators.begin(), manifest_.generators.end());
}

Restored Restoring::report() const {
  Restored report = result_;
  const auto note = [&](const std::string& tensor, const std::string& name) {
    if (!used_.contains(tensor)) report.unused.push_back(name);
  };
  for (const VariableEntry& saved : manifest_.variables) {
    note(saved.name, saved.name);
    for (const SlotsEntry& slots : saved.slots)
      for (const std::string& name : slots.tensors) note(name, name);
  }
  for (const StateEntry& saved : manifest_.states) note(saved.tensor, saved.key);
  for (const auto& [name, tensor] : manifest_.positions) note(tensor, name);
  for (const auto& [name, value] : manifest_.values)
    if (!used_values_.contains(name)) report.unused.push_back(name);
  return report;
}

}  // namespace cohort::checkpoint
