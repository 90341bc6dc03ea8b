// SPDX-License-Identifier: Apache-2.0
// How the contents of a checkpoint come back from a folder.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "cohort/checkpoint/contents.h"
#include "cohort/checkpoint_files/folder_reader.h"
#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/core/spelling.h"
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

// Tables of different capacities have the same rows.
bool fits(const Variable& variable, const VariableEntry& saved) {
  if (variable.impl()->is_table() != saved.is_table()) return false;
  if (!saved.is_table()) return variable.spec() == saved.spec;
  TensorSpec own = variable.spec();
  own.sizes->front() = saved.spec.sizes->front();
  return own == saved.spec;
}

std::string text_of(const VariableEntry& saved) {
  return (saved.is_table() ? "a table " : "") + saved.spec.to_string();
}

}  // namespace

// One restore.
class Restoring {
 public:
  Restoring(const Contents& contents, const std::string& path, const RestoreOptions& options)
      : contents_(contents),
        path_(path),
        options_(options),
        parts_(contents.parts()),
        variables_(contents.all_variables()),
        states_(states_of(parts_, variables_)) {}

  Restored run() {
    const std::vector<Bytes> texts = parts_.exchange("checkpoint", [this] {
      return parts_.process() == 0 ? bytes_of_text(manifest_text(path_)) : Bytes();
    });
    manifest_ = parse_manifest(text_of_bytes(texts.at(0)), path_ + "/manifest.json");
    processes_ = texts.size();
    if (parts_.process() == 0) reader_ = std::make_unique<FolderReader>(path_, manifest_);
    result_.step = manifest_.step;
    result_.path = path_;
    match_variables();
    match_states();
    match_others();
    COHORT_CHECK(result_.missing.empty() || options_.allow_missing, ErrorCode::not_found,
                 "[checkpoint.read] expected all that is restored in checkpoint '", path_,
                 "', got none of ", quoted(result_.missing),
                 "; see RestoreOptions::names and prefix, or set allow_missing to leave it as it "
                 "is");
    restore();
    note_unused();
    return std::move(result_);
  }

 private:
  static std::string quoted(const std::vector<std::string>& names) {
    QuotedNames text;
    for (const std::string& name : names) text.add(name);
    return text.text();
  }
  std::string saved_name(const std::string& name) const {
    const auto renamed = options_.names.find(name);
    if (renamed != options_.names.end()) return renamed->second;
    const bool has_prefix = !options_.prefix.empty() && name.starts_with(options_.prefix);
    return has_prefix ? name.substr(options_.prefix.size()) : name;
  }
  const VariableEntry* find_saved(const std::string& name) {
    const std::string wanted = saved_name(name);
    for (const VariableEntry& saved : manifest_.variables)
      if (saved.name == wanted) return &saved;
    result_.missing.push_back(name);
    return nullptr;
  }
  [[noreturn]] void refuse(const std::string& name, const std::string& own,
                           const VariableEntry& saved) const {
    internal::throw_error(ErrorCode::invalid_argument, "[checkpoint.read] expected '", saved.name,
                          "' of checkpoint '", path_, "' to be ", own, ", as '", name, "' is, got ",
                          text_of(saved),
                          "; restore it into the model that was saved, or leave it out by a name "
                          "that the checkpoint does not have, with allow_missing");
  }

  void match_variables() {
    for (const Variable& variable : variables_) {
      const VariableEntry* const saved = find_saved(variable.name());
      if (saved == nullptr) continue;
      if (!fits(variable, *saved)) {
        refuse(variable.name(),
               (variable.impl()->is_table() ? "a table " : "") + variable.spec().to_string(),
               *saved);
      }
      of_variables_.emplace_back(variable, saved);
    }
    for (const auto& [name, tensor] : contents_.tensors_) {
      const VariableEntry* const saved = find_saved(name);
      if (saved == nullptr) continue;
      const TensorSpec own = TensorSpec::of(tensor);
      if (saved->is_table() || saved->spec != own) refuse(name, own.to_string(), *saved);
      of_tensors_.emplace_back(tensor, saved);
    }
  }

  // By key, and else the optimizers of one rule for the same variables in the order in which they
  // were made: their names may count optimizers that were made before.
  void match_states() {
    std::set<const StateEntry*> taken;
    std::vector<const StateEntry*> found(states_.size());
    const auto take = [&](std::size_t i, const auto& is_same) {
      for (const StateEntry& saved : manifest_.states) {
        if (found[i] != nullptr || taken.contains(&saved) || !is_same(saved)) continue;
        found[i] = &saved;
        taken.insert(&saved);
      }
    };
    for (std::size_t i = 0; i < states_.size(); ++i)
      take(i, [&](const StateEntry& saved) { return saved.key == states_[i]->key(); });
    for (std::size_t i = 0; i < states_.size(); ++i) {
      const AttachedState::OptimizerId id = states_[i]->id();
      if (id.rule.empty()) continue;
      take(i, [&](const StateEntry& saved) {
        return saved.rule == id.rule &&
               saved.first_variable == saved_name(std::string(id.first_variable));
      });
    }
    for (std::size_t i = 0; i < states_.size(); ++i) {
      if (found[i] == nullptr) {
        result_.missing.push_back(states_[i]->key());
        continue;
      }
      of_states_.emplace_back(states_[i], found[i]);
      optimizers_.emplace(std::pair(found[i]->optimizer, found[i]->rule),
                          std::string(states_[i]->id().name));
    }
  }

  void match_others() {
    for (const auto& [name, position] : contents_.positions_)
      if (!manifest_.positions.contains(name)) result_.missing.push_back(name);
    for (const auto& [name, value] : contents_.values_)
      if (!manifest_.values.contains(name)) result_.missing.push_back(name);
  }

  // The tensors as the first process reads them, or one part of each.
  std::vector<at::Tensor> fetch(const std::vector<std::string>& names,
                                std::optional<std::size_t> part = {}) {
    std::vector<at::Tensor> tensors;
    parts_.exchange("checkpoint", [&] {
      if (reader_ == nullptr) return Bytes();
      for (const std::string& name : names)
        tensors.push_back(part ? reader_->read_part(name, *part) : reader_->read(name));
      return Bytes();
    });
    if (reader_ == nullptr) {
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

  // The slots of the optimizers that exist. `part`: of a table.
  std::vector<internal::OptimizerSlots> fetch_slots(const VariableEntry& saved,
                                                    std::optional<std::size_t> part = {}) {
    std::vector<internal::OptimizerSlots> all;
    for (const SlotsEntry& slots : saved.slots) {
      const auto known = optimizers_.find(std::pair(slots.optimizer, slots.rule));
      if (known == optimizers_.end()) continue;
      internal::OptimizerSlots& own =
          all.emplace_back(internal::OptimizerSlots{known->second, slots.rule});
      for (const std::string& name : slots.tensors) {
        const bool has_parts = part && !manifest_.tensors.at(name).spec.sizes->empty();
        own.tensors.push_back(fetch({name}, has_parts ? part : std::optional<std::size_t>()).at(0));
      }
    }
    return all;
  }

  void restore() {
    const c10::NoGradGuard no_grad;
    // First, as they may be refused.
    for (const auto& [name, position] : contents_.positions_) {
      const auto saved = manifest_.positions.find(name);
      if (saved == manifest_.positions.end()) continue;
      position.restore(bytes_of_tensor(fetch({saved->second}).at(0)));
      result_.used.push_back(name);
    }
    for (const auto& [variable, saved] : of_variables_) {
      saved->is_table() ? restore_table(variable, *saved) : restore_variable(variable, *saved);
      result_.used.push_back(saved->name);
    }
    for (const auto& [tensor, saved] : of_tensors_) {
      at::Tensor own = tensor;
      own.copy_(fetch({saved->name}).at(0));
      result_.used.push_back(saved->name);
    }
    for (const auto& [state, saved] : of_states_) {
      state->load(bytes_of_tensor(fetch({saved->tensor}).at(0)));
      result_.used.push_back(saved->key);
    }
    for (const auto& [name, value] : contents_.values_) {
      const auto saved = manifest_.values.find(name);
      if (saved == manifest_.values.end()) continue;
      value.restore(saved->second);
      result_.used.push_back(name);
    }
    restore_generator();
  }

  void restore_variable(const Variable& variable, const VariableEntry& saved) {
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
  void restore_table(const Variable& variable, const VariableEntry& saved) {
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
  void restore_generator() {
    if (manifest_.generators.empty()) return;
    const at::Tensor first = fetch({manifest_.generators.front()}).at(0);
    std::vector<at::Tensor> others;
    const bool is_of_each = manifest_.generators.size() == processes_;
    if (is_of_each && processes_ > 1) others = fetch(manifest_.generators);
    set_default_generator(others.empty() ? first
                                         : others.at(static_cast<std::size_t>(parts_.process())));
    used_.insert(manifest_.generators.begin(), manifest_.generators.end());
  }

  void note_unused() {
    const auto note = [&](const std::string& tensor, const std::string& name) {
      if (!used_.contains(tensor)) result_.unused.push_back(name);
    };
    for (const VariableEntry& saved : manifest_.variables) {
      note(saved.name, saved.name);
      for (const SlotsEntry& slots : saved.slots)
        for (const std::string& name : slots.tensors) note(name, name);
    }
    for (const StateEntry& saved : manifest_.states) note(saved.tensor, saved.key);
    for (const auto& [name, tensor] : manifest_.positions) note(tensor, name);
    for (const auto& [name, value] : manifest_.values) {
      const auto has_name = [&, &key = name](const auto& each) { return each.first == key; };
      if (std::none_of(contents_.values_.begin(), contents_.values_.end(), has_name))
        result_.unused.push_back(name);
    }
  }

  const Contents& contents_;
  const std::string& path_;
  const RestoreOptions& options_;
  const internal::StrategyVariables& parts_;
  const std::vector<Variable> variables_;
  const std::vector<std::shared_ptr<AttachedState>> states_;
  Manifest manifest_;
  std::unique_ptr<FolderReader> reader_;  // nullptr: another process reads
  std::size_t processes_ = 1;
  std::vector<std::pair<Variable, const VariableEntry*>> of_variables_;
  std::vector<std::pair<at::Tensor, const VariableEntry*>> of_tensors_;
  std::vector<std::pair<std::shared_ptr<AttachedState>, const StateEntry*>> of_states_;
  // The names of optimizers here by their names and rules there.
  std::map<std::pair<std::string, std::string>, std::string> optimizers_;
  std::set<std::string> used_;  // tensors
  Restored result_;
};

Restored Contents::read(const std::string& path, const RestoreOptions& options) const {
  check_use("read");
  if (parts().home()->keeps_newer_values()) {
    log_warn(
        "[checkpoint.read] kept what other workers have handed over, in place of the older "
        "checkpoint '",
        path, "'");
    return {.path = path};
  }
  return Restoring(*this, path, options).run();
}

}  // namespace cohort::checkpoint
