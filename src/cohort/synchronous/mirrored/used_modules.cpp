// SPDX-License-Identifier: Apache-2.0
#include "cohort/synchronous/mirrored/used_modules.h"

#include <bit>
#include <map>
#include <set>
#include <string>

#include "cohort/strategy/eval_mode.h"
#include "cohort/strategy/module_memory.h"

namespace cohort::internal {

void UsedModules::keep(const std::shared_ptr<ModuleUse>& module) {
  const Lock lock(mutex_);
  sweep_(modules_, [](const auto& each) { return each.expired(); });
  modules_.push_back(module);
  note_storages(*module);
  has_any_ = true;
}

std::vector<std::vector<bool>> UsedModules::modes() {
  std::vector<std::vector<bool>> all;
  if (!has_any_) return all;
  const Lock lock(mutex_);
  for (const auto& weak : modules_) {
    if (const auto module = weak.lock()) all.push_back(module->modes.read());
  }
  return all;
}

void UsedModules::note_use(const std::shared_ptr<ModuleUse>& module) {
  keep_modes(module);
  EvalModeScope::note_use(*module);
}

// Only the first use in a run takes the lock.
void UsedModules::keep_modes(const std::shared_ptr<ModuleUse>& module) {
  if (module->last_run == scope_) return;
  const Lock lock(mutex_);
  if (open_scopes_ == 0 || module->last_run == scope_) return;
  saved_.push_back({module, module->modes.read()});
  module->last_run = scope_.load();
}

void UsedModules::check_used() {
  if (!has_any_) return;
  const Lock lock(mutex_);
  if (open_scopes_ > 1) return;  // another run changes them
  for (const SavedModes& saved : saved_) {
    ModuleUse& use = *saved.module;
    if (std::has_single_bit(use.runs + 1)) check_same_tensors(use, "run");
    ++use.runs;
  }
  if (replicas_ > 1) check_memory();
}

// Only a module with new memory costs more than a comparison of addresses. All its copies are
// looked at, since a replica may have got the memory in an earlier run.
void UsedModules::check_memory() {
  std::set<std::string> changed;
  for (const SavedModes& saved : saved_) {
    if (!has_known_storages(*saved.module)) changed.insert(saved.module->name);
  }
  if (changed.empty()) return;
  std::map<std::string, std::vector<std::shared_ptr<ModuleUse>>> copies;
  for (const auto& weak : modules_) {
    auto module = weak.lock();
    if (module && changed.contains(module->name)) copies[module->name].push_back(std::move(module));
  }
  for (const auto& [name, all] : copies) {
    check_memory_of_replicas(all, shares_parameters_);
    for (const auto& each : all) note_storages(*each);
  }
}

UsedModules::ModesScope::ModesScope(UsedModules* modules)
    : modules_(modules != nullptr && modules->has_any_ ? modules : nullptr) {
  if (modules_ == nullptr) return;
  const Lock lock(modules_->mutex_);
  if (modules_->open_scopes_++ == 0) ++modules_->scope_;
}

UsedModules::ModesScope::~ModesScope() {
  if (modules_ == nullptr) return;
  const Lock lock(modules_->mutex_);
  if (--modules_->open_scopes_ > 0) return;
  modules_->restore_modes();
  modules_->saved_.clear();
}

void UsedModules::ModesScope::restore() const {
  if (modules_ == nullptr) return;
  const Lock lock(modules_->mutex_);
  modules_->restore_modes();
}

void UsedModules::restore_modes() const {
  for (const SavedModes& saved : saved_) {
    if (!saved.before.empty()) saved.module->modes.write(saved.before);
  }
}

}  // namespace cohort::internal
