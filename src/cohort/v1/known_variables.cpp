// SPDX-License-Identifier: Apache-2.0
#include "cohort/v1/known_variables.h"

#include <algorithm>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/parameter_server/remote_variable.h"
#include "cohort/parameter_server_strategy/stand_in_memory.h"

namespace cohort::detail::v1 {

void KnownVariables::put(const rpc::SharedVariable& entry, const at::Tensor& initial) {
  COHORT_CHECK(!entry.slices.empty(), ErrorCode::data_loss,
               "[v1.variables] expected the places of variable '", entry.name, "', got none");
  const std::uint64_t id = entry.slices.front().variable;
  const std::vector<std::uint64_t> ids = {id};
  const Lock lock(mutex_);
  const auto [place, is_new] = by_name_.try_emplace(entry.name, known_.size());
  if (!is_new) {
    KnownVariable& known = known_[place->second];
    home_->placement().erase(std::vector{RemoteVariable::of(known.remote).id()});
  }
  home_->placement().erase(ids);
  home_->placement().take({.slices = entry.slices});
  // Steps compute with the copies of a strategy, so the stand-in gets no memory.
  const auto remote = std::make_shared<RemoteVariable>(entry.name, make_stand_in(entry.spec),
                                                       /*is_trainable=*/false, id,
                                                       std::weak_ptr<VariableHome>(home_));
  KnownVariable made{entry, Variable(remote), initial};
  if (is_new) {
    known_.push_back(std::move(made));
    return;
  }
  if (!initial.defined()) made.initial = known_[place->second].initial;
  known_[place->second] = std::move(made);
}

void KnownVariables::forget(const std::string& name) {
  const Lock lock(mutex_);
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return;
  const std::size_t place = found->second;
  home_->placement().erase(std::vector{RemoteVariable::of(known_[place].remote).id()});
  known_.erase(known_.begin() + static_cast<std::ptrdiff_t>(place));
  by_name_.erase(found);
  for (auto& [other, later] : by_name_)
    if (later > place) --later;
}

std::optional<rpc::SharedVariable> KnownVariables::find(const std::string& name) const {
  const Lock lock(mutex_);
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return std::nullopt;
  return known_[found->second].entry;
}

Variable KnownVariables::remote_of(const Variable& variable) const {
  const Lock lock(mutex_);
  const auto found = by_name_.find(variable.name());
  COHORT_CHECK(found != by_name_.end(), ErrorCode::failed_precondition,
               "[v1.variables] expected a variable of this strategy, got '", variable.name(), "'");
  return known_[found->second].remote;
}

std::vector<KnownVariable> KnownVariables::all() const {
  const Lock lock(mutex_);
  return known_;
}

std::uint64_t KnownVariables::last_id() const {
  const Lock lock(mutex_);
  std::uint64_t last = 0;
  for (const KnownVariable& known : known_)
    for (const rpc::Slice& slice : known.entry.slices)
      last = std::max({last, slice.variable, slice.shard});
  return last;
}

}  // namespace cohort::detail::v1
