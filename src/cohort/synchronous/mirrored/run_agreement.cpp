// SPDX-License-Identifier: Apache-2.0
#include "cohort/synchronous/mirrored/run_agreement.h"

#include <bit>
#include <exception>
#include <string_view>

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/optimizer/loss_gradients.h"
#include "cohort/strategy/module_memory.h"
#include "cohort/synchronous/mirrored/mirrored_home.h"
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

bool RunAgreement::may_differ() const {
  return home_.replicas() > 1 && home_.kind() == VariableKind::mirrored;
}

bool RunAgreement::shares_values() const {
  return home_.replicas() > 1 && home_.kind() == VariableKind::plain;
}

// A run on central values begins with these.
void RunAgreement::know_shared_values() const {
  if (home_.central() != nullptr) return;
  for (const Variable& each : home_.variables()) target_of(each).variable.know_values();
}

// Replicas would write while others read or write, so that the result would depend on their
// threads.
void RunAgreement::check_shared_value(const Variable& handle) const {
  const MirroredVariable& variable = target_of(handle).variable;
  COHORT_CHECK(!shares_values() || !variable.is_plain() || !variable.is_written_by_others(),
               ErrorCode::invalid_argument, "[strategy.run] expected variable '", handle.name(),
               "', of which the replicas of '", home_.name(),
               "' share the value, to be changed by minimize() and assign*(), got a step that "
               "writes in place into its tensor; assign it with an aggregation, or make it a "
               "buffer of a module in replicate(), of which each replica has its own");
}

std::vector<Variable> RunAgreement::agreeing() const {
  std::vector<Variable> variables = home_.variables();
  std::erase_if(variables,
                [](const Variable& each) { return !target_of(each).variable.must_agree(); });
  return variables;
}

// Optimizers of LibTorch that are not alike make other updates of equal gradients.
std::string RunAgreement::why_different() const {
  for (const auto& attached : home_.attached().all()) {
    const std::string difference = attached->difference();
    if (!difference.empty()) return ": the " + difference + std::string(kAlikeRemedy);
  }
  return std::string(kOutsideWriters);
}

RunAgreement::Scope::Scope(RunAgreement& agreement)
    : all_(agreement),
      home_(agreement.home_),
      is_inner_(home_.is_in_replica()),
      entry_(is_inner_ ? nullptr : &home_.run_gate()),
      is_open_((agreement.may_differ() || agreement.shares_values()) && !is_inner_),
      is_over_workers_(home_.has_workers() && !is_inner_) {
  home_.received().begin_run();
  if (is_over_workers_) before_ = all_.values_before_run();
  if (is_open_) begin_replicas();
  if (!is_over_workers_) return;
  const Lock lock(all_.mutex_);
  ++all_.open_runs_of_workers_;
}

void RunAgreement::Scope::begin_replicas() {
  const Lock lock(all_.mutex_);
  if (all_.shares_values()) {
    if (all_.open_runs_++ == 0) all_.know_shared_values();
    return;
  }
  if (all_.open_runs_ == 0 && all_.has_handed_out_) {
    for (const Variable& each : all_.agreeing()) target_of(each).variable.adopt_outside_write();
  }
  if (all_.open_runs_ == 0 && all_.may_have_diverged_) all_.check_after_failure();
  ++all_.open_runs_;
}

void RunAgreement::check(std::span<const Variable> variables) {
  if (!may_differ() || home_.is_in_replica()) return;
  const Lock lock(mutex_);
  if (open_runs_ > 0) return;
  for (const Variable& each : variables) {
    const auto [variable, component] = target_of(each);
    if (component || !variable.must_agree()) continue;
    variable.adopt_outside_write();
    COHORT_CHECK(variable.agrees(), ErrorCode::failed_precondition,
                 "[variable.read] expected equal values of variable '", variable.name(),
                 "' in all replicas of '", home_.name(), "', got different ones", why_different());
  }
}

void RunAgreement::check_after_failure() {
  for (const Variable& each : agreeing()) {
    COHORT_CHECK(target_of(each).variable.agrees(), ErrorCode::failed_precondition,
                 "[strategy.run] expected equal values of variable '", each.name(),
                 "' in all replicas of '", home_.name(),
                 "', got different ones: a run that has failed updated only some of them; assign "
                 "the variable, or restore_values() of the last saved ones");
  }
  may_have_diverged_ = false;
}

RunAgreement::Scope::~Scope() {
  if (is_over_workers_) {
    const Lock lock(all_.mutex_);
    --all_.open_runs_of_workers_;
  }
  if (!is_open_) return;
  all_.may_have_diverged_ = all_.may_differ();
  const Lock lock(all_.mutex_);
  --all_.open_runs_;
}

void RunAgreement::Scope::forget_trace() {
  if (is_open_ && all_.shares_values()) all_.know_shared_values();
}

void RunAgreement::Scope::finish() {
  if (!is_inner_) home_.received().finish_run();
  finish_replicas();
  if (is_over_workers_) all_.compare_with_workers(before_);
}

void RunAgreement::Scope::finish_replicas() {
  if (!is_open_) return;
  is_open_ = false;
  const Lock lock(all_.mutex_);
  if (--all_.open_runs_ > 0) return;  // another one changes variables
  if (all_.shares_values()) {
    for (const Variable& each : home_.variables()) all_.check_shared_value(each);
    return;
  }
  const bool compares = std::has_single_bit(++all_.runs_);
  if (!compares && !all_.has_handed_out_) return;
  if (compares) {
    for (const Variable& each : home_.variables()) {
      const MirroredVariable& variable = target_of(each).variable;
      if (variable.size() > 1) check_memory_of_components(each.name(), variable.tensors());
    }
  }
  for (const Variable& each : all_.agreeing()) {
    MirroredVariable& variable = target_of(each).variable;
    COHORT_CHECK(!compares || variable.agrees(), ErrorCode::failed_precondition,
                 "[strategy.run] expected equal values of variable '", variable.name(),
                 "' in all replicas of '", home_.name(), "' after the run, got different ones",
                 all_.why_different());
    variable.note_writes();
    warn_of_different_hooks(variable);
  }
}

std::map<std::string, std::uint64_t> RunAgreement::hashes_of_values() const {
  std::map<std::string, std::uint64_t> hashes;
  for (const Variable& each : home_.variables()) hashes.emplace(each.name(), hash_of_value(each));
  return hashes;
}

std::optional<RunAgreement::ValuesBefore> RunAgreement::values_before_run() {
  {
    const Lock lock(mutex_);
    const std::uint64_t number = ++runs_of_workers_;
    if (open_runs_of_workers_ > 0 || !std::has_single_bit(number)) return std::nullopt;
  }
  return ValuesBefore{hashes_of_values(), home_.workers()->num_combined()};
}

// A worker that runs an evaluation alone makes no call here, since nothing has changed. Neither do
// steps of optimizers, which compare values themselves.
void RunAgreement::compare_with_workers(const std::optional<ValuesBefore>& before) {
  if (runs_of_workers_ == kRunsBeforeWarning) warn_if_alone();
  if (!before || before->num_combined != home_.workers()->num_combined()) return;
  {
    const Lock lock(mutex_);
    if (open_runs_of_workers_ > 1) return;  // another one may have changed variables
  }
  for (const auto& [name, hash] : hashes_of_values()) {
    const auto found = before->hashes.find(name);
    const bool is_known = found != before->hashes.end() && hash != kMayDiffer;
    if (is_known && hash != found->second)
      return home_.check_values_agree("run", home_.variables());
  }
}

void RunAgreement::warn_if_alone() {
  if (!home_.has_workers() || runs_of_workers_ == 0 || home_.workers()->num_combined() > 0) return;
  if (std::uncaught_exceptions() > 0) return;  // a run has failed, which its error explains
  if (has_warned_.exchange(true)) return;
  log_warn("[strategy.run] expected steps that combine values of the ", home_.workers()->count(),
           " workers of '", home_.name(), "', got none in ", runs_of_workers_,
           " runs, so each worker trains alone; call minimize() of an optimizer of cohort, "
           "step() of a cohort::TorchOptimizer, or all_reduce() in the step");
}

}  // namespace cohort::internal
