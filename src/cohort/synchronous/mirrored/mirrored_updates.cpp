// SPDX-License-Identifier: Apache-2.0
// Steps of update rules for variables of a synchronous strategy.
#include <ATen/core/TensorBody.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/replicas/reduction.h"
#include "cohort/replicas/replica_devices.h"
#include "cohort/strategy/replica_context.h"
#include "cohort/strategy/strategy.h"
#include "cohort/strategy/strategy_access.h"
#include "cohort/synchronous/mirrored/mirrored_home.h"
#include "cohort/synchronous/mirrored/value_updates.h"
#include "cohort/synchronous/workers/worker_gradients.h"
#include "cohort/variable/hyperparameter.h"
#include "cohort/variable/row_gradient.h"
#include "cohort/variable/variable_state.h"

namespace cohort::internal {
namespace {

std::vector<Variable> variables_of(std::span<const Update> updates) {
  std::vector<Variable> variables;
  for (const Update& update : updates) variables.push_back(update.variable);
  return variables;
}

void check_same_variables(const PerReplica<std::vector<Update>>& all, std::string_view call) {
  const std::vector<Update>& first = all[0];
  for (std::size_t r = 1; r < all.size(); ++r) {
    const bool is_same =
        std::ranges::equal(first, all[r], {}, &Update::variable, &Update::variable);
    COHORT_CHECK(is_same, ErrorCode::invalid_argument, "[", call,
                 "] expected the same variables in the same order in all replicas, got ",
                 names_of(variables_of(first)), " in replica 0 and ",
                 names_of(variables_of(all[r])), " in replica ", r, kRequiresGradRemedy);
  }
}

// The sums over the replicas, in the tree of Reduction::sum() and in memory that may be
// overwritten, since a replica may go on and write into its gradient while others still read the
// sum; without a value where none has a gradient.
std::vector<Reduction::Parts> local_sums(const PerReplica<std::vector<Update>>& all,
                                         std::string_view call, CrossDeviceOps cross_device_ops) {
  check_same_variables(all, call);
  std::vector<Reduction::Parts> sums;
  for (std::size_t i = 0; i < all[0].size(); ++i) {
    std::vector<at::Tensor> gradients;
    bool are_temporary = true;
    for (std::size_t replica = 0; replica < all.size(); ++replica) {
      gradients.push_back(all[replica][i].gradient);
      are_temporary = are_temporary && all[replica][i].is_temporary;
    }
    sums.push_back(sum_of_gradient_parts(gradients, call, cross_device_ops, are_temporary));
  }
  return sums;
}

// The gradients of the only replica here, in the memory in which autograd made them.
std::vector<Reduction::Parts> own_parts(std::span<const Update> updates, std::string_view call) {
  const Reduction reduction(ReduceOp::sum, {}, call);
  std::vector<Reduction::Parts> parts;
  for (const Update& update : updates) {
    parts.emplace_back();
    if (update.gradient.defined()) parts.back() = reduction.parts(update.gradient.detach());
  }
  return parts;
}

// For each variable the update of the value that replica `component` uses, or of all its values.
std::vector<ValueUpdate> value_updates(const SlotKey& key, std::span<const Update> updates,
                                       std::span<const double> hyper,
                                       std::optional<std::size_t> component, bool is_mixed) {
  std::vector<ValueUpdate> wanted;
  for (const Update& update : updates) {
    MirroredVariable& variable = target_of(update.variable).variable;
    const std::optional<std::size_t> own = target_of(update.variable).component;
    const std::span<const double> numbers = key.hyper_of(update.variable.impl().get(), hyper);
    const at::Tensor gradient = variable::prepared_gradient(key, update.gradient, numbers);
    const auto add = [&](std::size_t value, bool is_of_all = false) {
      const c10::Device device = variable.component(value).device();
      wanted.push_back({variable, value, on_device(gradient, device), numbers, is_of_all});
    };
    if (own) {
      add(*own);
    } else if (component) {
      add(variable.value_of(*component));
    } else if (is_mixed && variable.must_agree()) {
      add(0, /*is_of_all=*/true);
    } else {
      for (std::size_t i = 0; i < variable.size(); ++i) add(i);
    }
  }
  return wanted;
}

// The contribution of a replica to a step of an optimizer.
struct OptimizerStep {
  const variable::UpdateRule* rule = nullptr;
  std::string optimizer;
  std::vector<double> hyper;

  std::string to_string() const {
    std::string text = std::string(rule->name()) + ", '" + optimizer + "', with";
    const auto names = rule->hyperparameter_names();
    for (std::size_t i = 0; i < hyper.size(); ++i)  // those of groups follow
      text += (i == 0 ? " " : ", ") + std::string(names[i % names.size()]) + " " +
              std::to_string(hyper[i]);
    return text;
  }
};

// One optimizer makes the step for all replicas. The settings of another one would be lost.
void check_same_optimizer(const PerReplica<OptimizerStep>& steps) {
  for (std::size_t r = 1; r < steps.size(); ++r) {
    const bool is_same = steps[r].rule == steps[0].rule &&
                         steps[r].optimizer == steps[0].optimizer &&
                         steps[r].hyper == steps[0].hyper;
    COHORT_CHECK(is_same, ErrorCode::invalid_argument,
                 "[optimizer.apply_gradients] expected the same optimizer with the same "
                 "hyperparameters in all replicas, got ",
                 steps[0].to_string(), " in replica 0 and ", steps[r].to_string(), " in replica ",
                 r,
                 "; call minimize() of one optimizer in all of them, and change its "
                 "hyperparameters outside of run()");
  }
}

}  // namespace

struct MirroredHome::Reduced {
  std::vector<Update> updates;
  std::vector<double> hyper;
  bool is_applied = false;
};

// A value that the replicas share is updated by one of them, before another reads it. So are
// values on CPUs and GPUs, which would round differently.
MirroredHome::Reduced MirroredHome::reduce(const ReplicaContext& replica, const SlotKey& key,
                                           std::span<const Update> updates,
                                           std::span<const double> hyper) {
  return StrategyAccess::merge(
      replica, "apply_gradients",
      [this, &key](Strategy&, const PerReplica<std::vector<Update>>& all,
                   const PerReplica<OptimizerStep>& steps) {
        check_same_optimizer(steps);
        const std::vector<Update>& first = all[0];
        Reduced reduced{.updates = {}, .hyper = steps[0].hyper, .is_applied = false};
        const c10::NoGradGuard no_grad;
        const std::vector<Variable> variables = variables_of(first);
        const std::string what = has_workers() ? attached_.step_of(key) : std::string();
        const bool is_early =
            has_workers() && gradients_->early().finished(what, variables) != nullptr;
        std::vector<Reduction::Parts> sums = is_early
                                                 ? own_parts(first, kApplyCall)
                                                 : local_sums(all, kApplyCall, cross_device_ops_);
        reduced.is_applied =
            has_workers() && sum_over_workers(*this, key, what, variables, sums, reduced.hyper);
        if (reduced.is_applied) {
          if (key.counter != nullptr) key.counter->add_one();
          return reduced;
        }
        const std::vector<at::Tensor> gradients = gradients_of_sums(sums, variables);
        reduced.is_applied = is_mixed();
        for (std::size_t i = 0; i < first.size(); ++i) {
          if (!gradients[i].defined()) continue;
          reduced.updates.push_back({first[i].variable, gradients[i]});
          if (target_of(first[i].variable).variable.is_plain()) reduced.is_applied = true;
        }
        if (reduced.is_applied)
          apply_values(
              key, value_updates(key, reduced.updates, reduced.hyper, std::nullopt, is_mixed()));
        if (key.counter != nullptr) key.counter->add_one();
        return reduced;
      },
      std::vector<Update>(updates.begin(), updates.end()),
      OptimizerStep{&key.rule, std::string(key.optimizer),
                    std::vector<double>(hyper.begin(), hyper.end())});
}

std::unique_ptr<GradientSink> MirroredHome::gradient_sink(const SlotKey& key,
                                                          std::span<const Variable> variables) {
  if (!has_workers() || !gradients_->early().options().is_wanted || gpus_ > 0) return nullptr;
  if (place_here().kind != Place::Kind::replica) return nullptr;
  const bool are_whole = std::ranges::all_of(variables, [&](const auto& each) {
    return each.impl()->home().get() == this && !target_of(each).component;
  });
  return are_whole ? gradients_->early().begin(attached_.step_of(key), variables) : nullptr;
}

std::vector<at::Tensor> MirroredHome::sum_over_replicas(std::span<const Update> gradients) {
  const Place place = place_here();
  if (place.kind != Place::Kind::replica || !has_several_replicas())
    return VariableHome::sum_over_replicas(gradients);
  std::vector<at::Tensor> sums = StrategyAccess::merge(
      *place.replica, "clip_by_global_norm",
      [this](Strategy&, const PerReplica<std::vector<Update>>& all) {
        const c10::NoGradGuard no_grad;
        std::vector<Reduction::Parts> parts = local_sums(all, kClipCall, cross_device_ops_);
        if (has_workers()) gradients_->sum(kClipCall, "sum", variables_of(all[0]), parts, {});
        std::vector<at::Tensor> of_all;
        for (const Reduction::Parts& each : parts) {
          // All sums get one order in memory, since the norm is added in it.
          const at::Tensor sum = gradient_of_sum(each);
          of_all.push_back(sum.defined() && !each.is_sparse() ? sum.contiguous() : sum);
        }
        return of_all;
      },
      std::vector<Update>(gradients.begin(), gradients.end()));
  for (at::Tensor& sum : sums) {
    if (sum.defined()) sum = on_device(sum, devices_[place.component]);
  }
  return sums;
}

std::vector<at::Tensor> MirroredHome::memory_of(const Variable& variable) const {
  return target_of(variable).variable.tensors();
}

void MirroredHome::apply(const SlotKey& key, std::span<const Update> updates,
                         std::span<const double> hyper) {
  const Place place = place_here();
  const bool is_reduced = place.kind == Place::Kind::replica && has_several_replicas();
  if (place.component == 0) look_for_plain_rows();
  Reduced reduced;
  if (is_reduced) {
    for (const Update& update : updates) check_is_whole(update.variable);
    reduced = reduce(*place.replica, key, updates, hyper);
    if (reduced.is_applied) return note_written(place, /*is_update=*/true);
    updates = reduced.updates;
    hyper = reduced.hyper;
  }
  const bool is_of_all = place.kind == Place::Kind::all;
  for (const Update& update : updates) {
    const auto [variable, own] = target_of(update.variable);
    if (own || place.kind == Place::Kind::update) variable.allow_difference();
  }
  const auto component = is_of_all ? std::nullopt : std::optional(place.component);
  apply_values(key, value_updates(key, updates, hyper, component, is_mixed()));
  note_written(place, /*is_update=*/true);
  if (is_reduced || !has_workers()) return;
  for (const Update& update : updates) target_of(update.variable).variable.doubt_values();
}

// A run with distributed arguments does not end the search: a program may have steps of both kinds.
void MirroredHome::look_for_plain_rows() {
  if (plain_runs_left_ <= 0) return;
  const std::size_t replicas = RunArguments::replicas_at_first_update_with_plain_rows();
  if (replicas == 0 || --plain_runs_left_ != 0) return;
  log_warn(
      "[strategy.run] got no distributed argument in several steps that train variables. A "
      "plain tensor that is given to run() or to a step of function() is whole in each "
      "replica, and the gradients of the ",
      replicas,
      " replicas are added: give it an element of distribute_dataset(), or a PerReplica. A "
      "program whose replicas shall all have the whole tensor is right; this line comes once");
}

void MirroredHome::note_written(const Place& place, bool is_update) {
  if (place.kind != Place::Kind::replica) return undo_.note_write_of_all();
  if (is_update) undo_.note_update(place.component);
}

}  // namespace cohort::internal
