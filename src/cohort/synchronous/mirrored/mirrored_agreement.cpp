// SPDX-License-Identifier: Apache-2.0
// Detects writes into the tensors of variables that no method of Variable made: LibTorch lets any
// code write into a tensor.
#include <atomic>
#include <bit>
#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/optimizer/loss_gradients.h"
#include "cohort/strategy/module_memory.h"
#include "cohort/synchronous/mirrored/mirrored_home.h"
#include "cohort/synchronous/state_of_replicas.h"
#include "cohort/synchronous/workers/compared_values.h"

namespace cohort::internal {
namespace {

constexpr std::string_view kOutsideWriters =
    ": something other than minimize() and assign*() has written into its tensor, such as an "
    "optimizer of LibTorch or an operator in place; use minimize(), a cohort::TorchOptimizer, or "
    "Variable::assign()";

constexpr std::string_view kAlikeRemedy =
    "; the optimizers of the replicas must stay alike: change learning rates and options and load "
    "states in for_each(), in the same way for each, and restore the values of all";

constexpr std::uint64_t kRunsBeforeWarning = 16;

// A hook changes the gradient of its own replica, and these are added.
void warn_of_different_hooks(const MirroredVariable& variable) {
  static std::atomic<bool> has_warned = false;
  if (has_warned) return;
  const std::size_t first = num_hooks(variable.component(0));
  for (std::size_t replica = 1; replica < variable.size(); ++replica) {
    const std::size_t other = num_hooks(variable.component(replica));
    if (other == first || has_warned.exchange(true)) continue;
    log_warn("[strategy.run] expected as many hooks on the tensor of variable '", variable.name(),
             "' in all replicas, got ", first, " in replica 0 and ", other, " in replica ", replica,
             "; a hook changes the gradient of its own replica alone. Call register_hook() in the "
             "factory of replicate(), or in run() in each replica; this line comes once");
  }
}

}  // namespace

std::vector<std::shared_ptr<MirroredVariable>> MirroredHome::agreeing() {
  std::vector<std::shared_ptr<MirroredVariable>> variables;
  for (const auto& [name, weak] : by_name_) {
    auto variable = std::dynamic_pointer_cast<MirroredVariable>(weak.lock());
    if (variable && variable->must_agree()) variables.push_back(std::move(variable));
  }
  return variables;
}

// Optimizers of LibTorch that are not alike make other updates of equal gradients.
std::string MirroredHome::why_different() const {
  for (const auto& weak : attached_) {
    const auto state = std::dynamic_pointer_cast<StateOfReplicas>(weak.lock());
    const std::string difference = state ? state->difference() : std::string();
    if (!difference.empty()) return ": the " + difference + std::string(kAlikeRemedy);
  }
  return std::string(kOutsideWriters);
}

MirroredHome::RunScope::RunScope(MirroredHome& home)
    : home_(home),
      entry_(home.is_in_replica() ? nullptr : &home.run_gate_),
      is_open_(home.replicas_ > 1 && home.kind_ == VariableKind::mirrored && !home.is_in_replica()),
      is_over_workers_(home.has_workers() && !home.is_in_replica()) {
  home_.received_.begin_run();
  if (is_over_workers_) before_ = home_.values_before_run();
  if (is_open_) begin_replicas();
  if (!is_over_workers_) return;
  const Lock lock(home_.mutex_);
  ++home_.open_runs_of_workers_;
}

void MirroredHome::RunScope::begin_replicas() {
  const Lock lock(home_.mutex_);
  if (home_.open_runs_ == 0 && home_.has_handed_out_) {
    for (const auto& variable : home_.agreeing()) variable->adopt_outside_write();
  }
  if (home_.open_runs_ == 0 && home_.may_have_diverged_) home_.check_after_failure();
  ++home_.open_runs_;
}

void MirroredHome::check_agreement(std::span<const Variable> variables) const {
  if (replicas_ == 1 || kind_ != VariableKind::mirrored || is_in_replica()) return;
  const Lock lock(mutex_);
  if (open_runs_ > 0) return;
  for (const Variable& each : variables) {
    const auto [variable, component] = target_of(each);
    if (component || !variable.must_agree()) continue;
    variable.adopt_outside_write();
    COHORT_CHECK(variable.agrees(), ErrorCode::failed_precondition,
                 "[variable.read] expected equal values of variable '", variable.name(),
                 "' in all replicas of '", name_, "', got different ones", why_different());
  }
}

void MirroredHome::check_after_failure() {
  for (const auto& variable : agreeing()) {
    COHORT_CHECK(variable->agrees(), ErrorCode::failed_precondition,
                 "[strategy.run] expected equal values of variable '", variable->name(),
                 "' in all replicas of '", name_,
                 "', got different ones: a run that has failed updated only some of them; assign "
                 "the variable, or restore_values() of the last saved ones");
  }
  may_have_diverged_ = false;
}

MirroredHome::RunScope::~RunScope() {
  if (is_over_workers_) {
    const Lock lock(home_.mutex_);
    --home_.open_runs_of_workers_;
  }
  if (!is_open_) return;
  home_.may_have_diverged_ = true;
  const Lock lock(home_.mutex_);
  --home_.open_runs_;
}

void MirroredHome::RunScope::finish() {
  if (!home_.is_in_replica()) home_.received_.finish_run();
  finish_replicas();
  if (is_over_workers_) home_.compare_with_workers(before_);
}

void MirroredHome::RunScope::finish_replicas() {
  if (!is_open_) return;
  is_open_ = false;
  const Lock lock(home_.mutex_);
  if (--home_.open_runs_ > 0) return;  // another one changes variables
  const bool compares = std::has_single_bit(++home_.runs_);
  if (!compares && !home_.has_handed_out_) return;
  if (compares) home_.check_memory_of_variables();
  for (const auto& variable : home_.agreeing()) {
    COHORT_CHECK(!compares || variable->agrees(), ErrorCode::failed_precondition,
                 "[strategy.run] expected equal values of variable '", variable->name(),
                 "' in all replicas of '", home_.name_, "' after the run, got different ones",
                 home_.why_different());
    variable->note_writes();
    warn_of_different_hooks(*variable);
  }
}

void MirroredHome::check_memory_of_variables() const {
  if (kind_ == VariableKind::plain) return;
  for (const auto& [name, weak] : by_name_) {
    const auto variable = std::dynamic_pointer_cast<MirroredVariable>(weak.lock());
    if (variable && variable->size() > 1) check_memory_of_components(name, variable->tensors());
  }
}

std::map<std::string, std::uint64_t> MirroredHome::hashes_of_values() const {
  std::map<std::string, std::uint64_t> hashes;
  for (const Variable& each : variables()) hashes.emplace(each.name(), hash_of_value(each));
  return hashes;
}

std::optional<MirroredHome::ValuesBefore> MirroredHome::values_before_run() {
  {
    const Lock lock(mutex_);
    const std::uint64_t number = ++runs_of_workers_;
    if (open_runs_of_workers_ > 0 || !std::has_single_bit(number)) return std::nullopt;
  }
  return ValuesBefore{hashes_of_values(), workers_->num_combined()};
}

// A worker that runs an evaluation alone makes no call here, since nothing has changed. Neither do
// steps of optimizers, which compare values themselves.
void MirroredHome::compare_with_workers(const std::optional<ValuesBefore>& before) {
  if (runs_of_workers_ == kRunsBeforeWarning) warn_if_alone();
  if (!before || before->num_combined != workers_->num_combined()) return;
  {
    const Lock lock(mutex_);
    if (open_runs_of_workers_ > 1) return;  // another one may have changed variables
  }
  for (const auto& [name, hash] : hashes_of_values()) {
    const auto found = before->hashes.find(name);
    const bool is_known = found != before->hashes.end() && hash != kMayDiffer;
    if (is_known && hash != found->second) return check_values_agree("run", variables());
  }
}

void MirroredHome::warn_if_alone() {
  if (!has_workers() || runs_of_workers_ == 0 || workers_->num_combined() > 0) return;
  if (std::uncaught_exceptions() > 0) return;  // a run has failed, which its error explains
  if (has_warned_.exchange(true)) return;
  log_warn("[strategy.run] expected steps that combine values of the ", workers_->count(),
           " workers of '", name_, "', got none in ", runs_of_workers_,
           " runs, so each worker trains alone; call minimize() of an optimizer of cohort, "
           "step() of a cohort::TorchOptimizer, or all_reduce() in the step");
}

}  // namespace cohort::internal
