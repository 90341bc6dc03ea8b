// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/attached_states.h"

#include <algorithm>

namespace cohort {

void AttachedStates::add(const std::shared_ptr<AttachedState>& state) {
  const Lock lock(mutex_);
  sweep_(states_, [](const auto& each) { return each.expired(); });
  states_.push_back(state);
}

std::vector<std::shared_ptr<AttachedState>> AttachedStates::all() const {
  std::vector<std::shared_ptr<AttachedState>> all;
  const Lock lock(mutex_);
  for (const auto& weak : states_) {
    if (auto state = weak.lock()) all.push_back(std::move(state));
  }
  return all;
}

std::string AttachedStates::step_of(const SlotKey& key) const {
  const std::vector<std::shared_ptr<AttachedState>> states = all();
  const auto own = std::find_if(states.begin(), states.end(),
                                [&](const auto& each) { return each->id().name == key.optimizer; });
  std::string text(key.rule.name());
  if (own == states.end()) return text;
  const auto like_own = std::count_if(states.begin(), own, [&](const auto& each) {
    const AttachedState::OptimizerId a = each->id(), b = (*own)->id();
    return a.rule == b.rule && a.first_variable == b.first_variable;
  });
  if (like_own > 0) text += " #" + std::to_string(like_own + 1);
  return text;
}

std::string AttachedStates::alike_in_steps(std::string_view optimizer) const {
  std::string text;
  for (const auto& state : all()) text += state->alike_in_steps(optimizer);
  return text;
}

void CreationWatches::add(const std::shared_ptr<CreationWatch>& watch) {
  const Lock lock(mutex_);
  std::erase_if(watches_, [](const auto& each) { return each.expired(); });
  watches_.push_back(watch);
  may_have_some_.store(true, std::memory_order_release);
}

std::vector<std::shared_ptr<CreationWatch>> CreationWatches::all() const {
  std::vector<std::shared_ptr<CreationWatch>> all;
  const Lock lock(mutex_);
  for (const std::weak_ptr<CreationWatch>& weak : watches_)
    if (auto watch = weak.lock()) all.push_back(std::move(watch));
  return all;
}

}  // namespace cohort
