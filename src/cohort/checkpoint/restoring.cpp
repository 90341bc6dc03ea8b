// SPDX-License-Identifier: Apache-2.0
#include "cohort/checkpoint/restoring.h"

#include <ATen/core/TensorBody.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <filesystem>

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/core/spelling.h"
#include "cohort/variable/safetensors_file.h"

namespace cohort::checkpoint {
namespace {

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

[[noreturn]] void refuse(const std::string& path, const std::string& name, const std::string& own,
                         const VariableEntry& saved) {
  internal::throw_error(ErrorCode::invalid_argument, "[checkpoint.read] expected '", saved.name,
                        "' of checkpoint '", path, "' to be ", own, ", as '", name, "' is, got ",
                        text_of(saved),
                        "; restore it into the model that was saved, or leave it out by a name "
                        "that the checkpoint does not have, with allow_missing");
}

void check_fits(const std::string& path, const Variable& variable, const VariableEntry& saved) {
  if (fits(variable, saved)) return;
  refuse(path, variable.name(),
         (variable.impl()->is_table() ? "a table " : "") + variable.spec().to_string(), saved);
}

void check_fits(const std::string& path, const std::string& name, const at::Tensor& tensor,
                const VariableEntry& saved) {
  const TensorSpec own = TensorSpec::of(tensor);
  if (saved.is_table() || saved.spec != own) refuse(path, name, own.to_string(), saved);
}

// A safetensors file, such as a state_dict that Python has saved, as a checkpoint of variables. It
// has no checksums of its own.
std::string manifest_of_file(const std::string& path) {
  Manifest manifest;
  const variable::SafetensorsFile file(path);
  for (const auto& [name, saved] : file.tensors()) {
    if (!saved.dtype) continue;  // nothing here can have it
    const TensorSpec spec{*saved.dtype, saved.sizes};
    const std::int64_t rows = saved.sizes.empty() ? 1 : saved.sizes.front();
    manifest.tensors[name] = {.spec = spec, .file = "file"};
    if (rows > 0) manifest.tensors[name].parts = {{.rows = rows}};
    manifest.variables.push_back({.name = name, .spec = spec});
  }
  return encode(manifest);
}

std::string quoted(const std::vector<std::string>& names) {
  QuotedNames text;
  for (const std::string& name : names) text.add(name);
  return text.text();
}

}  // namespace

Restoring::Restoring(const Contents& contents, std::string path, RestoreOptions options)
    : contents_(contents),
      path_(std::move(path)),
      options_(std::move(options)),
      parts_(contents.parts()) {}

void Restoring::run() {
  const std::vector<Variable> variables = contents_.all_variables();
  const std::vector<Bytes> texts = parts_.exchange("checkpoint", [this] {
    if (parts_.process() != 0) return Bytes();
    const bool is_file = std::filesystem::is_regular_file(path_);
    if (is_file) file_.emplace(path_);
    return bytes_of_text(is_file ? manifest_of_file(path_) : manifest_text(path_));
  });
  manifest_ = parse_manifest(text_of_bytes(texts.at(0)), path_ + "/manifest.json");
  processes_ = texts.size();
  if (parts_.process() == 0 && !file_) reader_ = std::make_unique<FolderReader>(path_, manifest_);
  result_.step = manifest_.step;
  result_.path = path_;
  match_variables(variables);
  match_states(states_of(parts_, variables));
  match_others();
  check_missing();
  restore();
}

void Restoring::check_missing() {
  if (result_.missing.empty() || options_.allow_missing) return;
  const std::vector<std::string> missing = std::exchange(result_.missing, {});
  internal::throw_error(ErrorCode::not_found,
                        "[checkpoint.read] expected all that is restored in checkpoint '", path_,
                        "', got none of ", quoted(missing),
                        "; see RestoreOptions::names and prefix, or set allow_missing to leave it "
                        "as it is");
}

std::string Restoring::saved_name(const std::string& name) const {
  const auto renamed = options_.names.find(name);
  if (renamed != options_.names.end()) return renamed->second;
  const bool has_prefix = !options_.prefix.empty() && name.starts_with(options_.prefix);
  return has_prefix ? name.substr(options_.prefix.size()) : name;
}

const VariableEntry* Restoring::find_saved(const std::string& name) {
  const std::string wanted = saved_name(name);
  for (const VariableEntry& saved : manifest_.variables)
    if (saved.name == wanted) return &saved;
  result_.missing.push_back(name);
  return nullptr;
}

void Restoring::match_variables(const std::vector<Variable>& variables) {
  for (const Variable& variable : variables) {
    const VariableEntry* const saved = find_saved(variable.name());
    if (saved == nullptr) continue;
    check_fits(path_, variable, *saved);
    of_variables_.emplace_back(variable, saved);
  }
  for (const auto& [name, tensor] : contents_.tensors_) {
    const VariableEntry* const saved = find_saved(name);
    if (saved == nullptr) continue;
    check_fits(path_, name, tensor, *saved);
    of_tensors_.emplace_back(tensor, saved);
  }
}

// By key, and else the optimizers of one rule for the same variables in the order in which they
// were made: their names may count optimizers that were made before.
void Restoring::match_states(const std::vector<std::shared_ptr<AttachedState>>& states) {
  std::set<const StateEntry*> taken;
  std::vector<const StateEntry*> found(states.size());
  const auto take = [&](std::size_t i, const auto& is_same) {
    for (const StateEntry& saved : manifest_.states) {
      if (found[i] != nullptr || taken.contains(&saved) || !is_same(saved)) continue;
      if (used_.contains(saved.tensor)) continue;
      found[i] = &saved;
      taken.insert(&saved);
    }
  };
  for (std::size_t i = 0; i < states.size(); ++i)
    take(i, [&](const StateEntry& saved) { return saved.key == states[i]->key(); });
  for (std::size_t i = 0; i < states.size(); ++i) {
    const AttachedState::OptimizerId id = states[i]->id();
    if (id.rule.empty()) continue;
    take(i, [&](const StateEntry& saved) {
      return saved.rule == id.rule &&
             saved.first_variable == saved_name(std::string(id.first_variable));
    });
  }
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (found[i] == nullptr) {
      result_.missing.push_back(states[i]->key());
      continue;
    }
    of_states_.emplace_back(states[i], found[i]);
    optimizers_.emplace(std::pair(found[i]->optimizer, found[i]->rule),
                        std::string(states[i]->id().name));
  }
}

void Restoring::match_others() {
  for (const auto& [name, position] : contents_.positions_)
    if (!manifest_.positions.contains(name)) result_.missing.push_back(name);
  for (const auto& [name, value] : contents_.values_)
    if (!manifest_.values.contains(name)) result_.missing.push_back(name);
}

void Restoring::note_made(const Variable& variable) {
  if (!has_open()) return;
  const VariableEntry* const saved = find_saved(variable.name());
  check_missing();
  if (saved == nullptr) return;
  check_fits(path_, variable, *saved);
  const c10::NoGradGuard no_grad;
  restore_any(variable, *saved);
  // A local variable may have had its optimizers before it was added.
  if (parts_.owns(variable)) return;
  for (const auto& state : states_of(parts_, std::span(&variable, 1)))
    if (state->id().first_variable == variable.name()) note_made(*state);
}

// The slots were restored with their variables, under the optimizer's name.
void Restoring::note_made(AttachedState& state) {
  if (!is_own(state) || !has_open()) return;
  match_states({std::shared_ptr<AttachedState>(std::shared_ptr<void>(), &state)});
  check_missing();
  if (of_states_.empty()) return;
  const StateEntry& saved = *std::exchange(of_states_, {}).front().second;
  const c10::NoGradGuard no_grad;
  rename_slots(saved, std::string(state.id().name));
  restore_state(state, saved);
}

// Optimizers of local variables belong to a checkpoint that has their first variable.
bool Restoring::is_own(const AttachedState& state) const {
  const auto is_same = [&](const std::shared_ptr<AttachedState>& each) {
    return each.get() == &state;
  };
  return std::ranges::any_of(states_of(parts_, contents_.all_variables()), is_same);
}

void Restoring::note_added(const std::string& name, const at::Tensor& tensor) {
  if (!has_open()) return;
  const VariableEntry* const saved = find_saved(name);
  check_missing();
  if (saved == nullptr) return;
  check_fits(path_, name, tensor, *saved);
  const c10::NoGradGuard no_grad;
  restore_tensor(tensor, *saved);
}

void Restoring::note_added(const std::string& name, const SavedPosition& position) {
  if (!has_open()) return;
  if (!manifest_.positions.contains(name)) result_.missing.push_back(name);
  check_missing();
  restore_position(name, position);
}

void Restoring::note_added(const std::string& name, const SavedState& value) {
  if (!has_open()) return;
  if (!manifest_.values.contains(name)) result_.missing.push_back(name);
  check_missing();
  restore_value(name, value);
}

Restored Contents::read(const std::string& path, const RestoreOptions& options) const {
  check_restore();
  open_.reset();
  restored_ = {.path = path};
  if (parts().home()->keeps_newer_values()) {
    log_warn("[checkpoint.read] kept what the running job has, in place of the older checkpoint '",
             path, "'");
    return restored_;
  }
  const auto restoring = std::make_shared<Restoring>(*this, path, options);
  restoring->run();
  restored_ = restoring->report();
  if (options.deferred && restoring->has_open()) {
    open_ = restoring;
    const std::shared_ptr<VariableHome> local = home_of_local_variables();
    local->creation_watches().add(open_);
    if (parts().home() != local) parts().home()->creation_watches().add(open_);
  }
  return restored_;
}

Restored Contents::restored() const { return open_ == nullptr ? restored_ : open_->report(); }

}  // namespace cohort::checkpoint
