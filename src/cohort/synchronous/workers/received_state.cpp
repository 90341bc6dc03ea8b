// SPDX-License-Identifier: Apache-2.0
#include "cohort/synchronous/workers/received_state.h"

#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/core/spelling.h"

namespace cohort::internal {
namespace {

template <class Map>
std::string listed_names(const Map& all) {
  QuotedNames names;
  for (const auto& [name, value] : all) names.add(name);
  return all.empty() ? "none" : names.text();
}

}  // namespace

void ReceivedState::keep(HomeState state, bool awaits_first_run, std::string source) {
  const Lock lock(mutex_);
  phase_ = awaits_first_run   ? Phase::before_first_run
           : state.is_empty() ? Phase::nothing
                              : Phase::in_first_run;
  state_ = std::move(state);
  source_ = std::move(source);
  is_used_.clear();
}

std::optional<VariableRecord> ReceivedState::find(const std::string& name,
                                                  const TensorSpec& spec) const {
  if (phase_ == Phase::nothing) return std::nullopt;
  const Lock lock(mutex_);
  const auto found = state_.variables.find(name);
  if (found == state_.variables.end()) {
    COHORT_CHECK(phase_ != Phase::before_first_run, ErrorCode::failed_precondition,
                 "[strategy.variable] expected a variable that the other workers have, got '", name,
                 "', which ", source_, " has not (of its variables, ",
                 listed_names(state_.variables),
                 " are not created here yet); a worker that comes back must create the same "
                 "variables, under the same names, as the others have created");
    return std::nullopt;
  }
  COHORT_CHECK(found->second.spec == spec, ErrorCode::invalid_argument,
               "[strategy.variable] expected variable '", name, "' as ", source_, " has it, ",
               found->second.spec.to_string(), ", got ", spec.to_string(),
               "; a worker that comes back must run the same program as the others");
  return found->second;
}

void ReceivedState::forget(const std::string& name) {
  if (phase_ == Phase::nothing) return;
  const Lock lock(mutex_);
  state_.variables.erase(name);
}

std::optional<Bytes> ReceivedState::find_attached(const std::string& key) {
  if (phase_ == Phase::nothing) return std::nullopt;
  const Lock lock(mutex_);
  const auto found = state_.attached.find(key);
  if (found != state_.attached.end()) {
    is_used_[key] = true;
    return found->second;
  }
  COHORT_CHECK(phase_ != Phase::before_first_run, ErrorCode::failed_precondition,
               "[strategy.optimizer] expected an optimizer that the other workers have, got ", key,
               ", which ", source_, " has not (it has ", listed_names(state_.attached),
               "); a worker that comes back must make the same optimizers: give them names");
  return std::nullopt;
}

HomeState ReceivedState::kept() const {
  const Lock lock(mutex_);
  return state_;
}

void ReceivedState::drop() {
  const Lock lock(mutex_);
  for (const auto& [key, is_used] : is_used_) state_.attached.erase(key);
  if (!state_.is_empty()) {
    log_warn("[strategy.rebuild] of what ", source_,
             " has handed over, this program has not created ", listed_names(state_.variables),
             " and ", listed_names(state_.attached),
             " before its first run; these values are dropped, so create all variables and "
             "optimizers before the first run");
  }
  state_ = {};
  is_used_.clear();
  phase_ = Phase::nothing;
}

}  // namespace cohort::internal
