// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/torch_optimizer.h"

#include <ATen/core/TensorBody.h>
#include <c10/core/GradMode.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/function/trace.h"
#include "cohort/optimizer/loss_gradients.h"
#include "cohort/optimizer/loss_warnings.h"
#include "cohort/replicas/reduction.h"
#include "cohort/replicas/replica_devices.h"
#include "cohort/strategy/strategy.h"
#include "cohort/strategy/strategy_access.h"
#include "cohort/synchronous/mirrored/mirrored_home.h"
#include "cohort/synchronous/mirrored/mirrored_variable.h"
#include "cohort/synchronous/torch_schedules.h"
#include "cohort/synchronous/undo/optimizer_gradients.h"
#include "cohort/synchronous/workers/worker_gradients.h"
#include "cohort/variable/replica_count.h"

namespace cohort::internal {
namespace {

// The contribution of a replica to a step.
struct OwnGradients {
  const void* optimizer;
  std::vector<at::Tensor> gradients;
  std::vector<bool> are_trained;  // whether each parameter requires a gradient in this replica
};

// Throws unless all replicas make the same step.
void check_same_step(const PerReplica<OwnGradients>& all, const std::vector<Variable>& variables,
                     const std::vector<std::size_t>& used) {
  for (std::size_t replica = 1; replica < all.size(); ++replica) {
    const bool is_same = all[replica].optimizer == all[0].optimizer &&
                         all[replica].gradients.size() == all[0].gradients.size();
    COHORT_CHECK(is_same, ErrorCode::invalid_argument,
                 "[strategy.TorchOptimizer] expected a step of the same optimizer in all replicas, "
                 "got another one in replica ",
                 replica, " than in replica 0; make the calls in the same order in all");
    const std::vector<bool>& first = all[0].are_trained;
    const auto different =
        std::mismatch(first.begin(), first.end(), all[replica].are_trained.begin()).first;
    COHORT_CHECK(different == first.end(), ErrorCode::invalid_argument,
                 "[strategy.TorchOptimizer] expected parameters that require a gradient in all "
                 "replicas or in none, got '",
                 variables[used[static_cast<std::size_t>(different - first.begin())]].name(),
                 "', which ", *different ? "requires" : "does not require",
                 " one in replica 0 and ", *different ? "not" : "does", " in replica ", replica,
                 kRequiresGradRemedy);
  }
}

// Over the replicas of this worker, which may have others.
std::vector<at::Tensor> sums_of(const PerReplica<OwnGradients>& all,
                                const std::vector<Variable>& variables,
                                const std::vector<std::size_t>& used, MirroredHome& home,
                                const std::function<TorchOptions()>& options) {
  check_same_step(all, variables, used);
  const c10::NoGradGuard no_grad;
  std::vector<Reduction::Parts> parts;
  std::vector<Variable> of_step;
  for (std::size_t i = 0; i < all[0].gradients.size(); ++i) {
    std::vector<at::Tensor> gradients;
    for (std::size_t replica = 0; replica < all.size(); ++replica)
      gradients.push_back(all[replica].gradients[i]);
    parts.push_back(
        sum_of_gradient_parts(gradients, "strategy.TorchOptimizer", home.cross_device_ops()));
    of_step.push_back(variables[used[i]]);
  }
  if (home.has_workers()) {
    const TorchOptions own = options();
    home.gradients().sum("strategy.TorchOptimizer", "step", of_step, parts,
                         {own.optimizer, own.names, own.values, &all[0].are_trained});
  }
  std::vector<at::Tensor> sums;
  for (const Reduction::Parts& each : parts) sums.push_back(gradient_of_sum(each));
  return sums;
}

// Beside the keys of the optimizer's own state.
constexpr const char* kIterations = "cohort_iterations";

// The optimizers of all replicas, which are alike. Used while no step runs.
class OptimizerState final : public AttachedState {
 public:
  OptimizerState(std::string key, OptimizedParameters::StateFunctions functions,
                 const std::vector<std::vector<at::Tensor>>& tensors,
                 std::shared_ptr<TorchSchedules> schedules)
      : key_(std::move(key)), functions_(std::move(functions)), schedules_(std::move(schedules)) {
    for (const std::vector<at::Tensor>& own : tensors) devices_.push_back(own.front().device());
  }
  std::string key() const override { return key_; }
  Bytes save() const override {
    torch::serialize::OutputArchive archive;
    functions_.save(archive);
    archive.write(kIterations, c10::IValue(schedules_->iterations()));
    Bytes bytes;
    archive.save_to([&](const void* data, std::size_t size) {
      const auto* const from = static_cast<const std::byte*>(data);
      bytes.insert(bytes.end(), from, from + size);
      return size;
    });
    return bytes;
  }
  void load(std::span<const std::byte> state) override {
    for (std::size_t replica = 0; replica < devices_.size(); ++replica) {
      try {
        torch::serialize::InputArchive archive;
        archive.load_from(reinterpret_cast<const char*>(state.data()), state.size(),
                          devices_[replica]);
        functions_.load(archive, replica);
        c10::IValue iterations;  // a state of before 0155 has none
        if (archive.try_read(kIterations, iterations))
          schedules_->set_iterations(iterations.toInt());
      } catch (const c10::Error& error) {
        throw_error(ErrorCode::invalid_argument, "[strategy.TorchOptimizer] expected the state of ",
                    key_, " as another worker has it, got one that does not fit: ",
                    error.what_without_backtrace(), "; make the same optimizers on all workers");
      }
    }
  }

  std::string difference() const override {
    for (std::size_t replica = 1; replica < devices_.size(); ++replica) {
      const std::string difference = functions_.difference(replica);
      if (!difference.empty()) return key_ + " differs between the replicas, " + difference;
    }
    return {};
  }

 private:
  const std::string key_;
  const OptimizedParameters::StateFunctions functions_;
  const std::shared_ptr<TorchSchedules> schedules_;
  std::vector<c10::Device> devices_;  // of each replica
};

}  // namespace

OptimizedParameters::OptimizedParameters(const std::vector<Variable>& parameters)
    : variables_(parameters), warnings_(std::make_shared<LossWarnings>()) {
  COHORT_CHECK(!parameters.empty(), ErrorCode::invalid_argument,
               "[strategy.TorchOptimizer] expected a module with trainable parameters, got none");
  home_ = std::dynamic_pointer_cast<MirroredHome>(parameters.front().impl()->home());
  COHORT_CHECK(home_ != nullptr, ErrorCode::unimplemented,
               "[strategy.TorchOptimizer] expected a module of a synchronous strategy, got '",
               parameters.front().name(),
               "' on parameter servers, which make the updates themselves; use cohort::Adam or "
               "another optimizer of cohort");
  COHORT_CHECK(
      home_->kind() == VariableKind::mirrored || home_->replicas() == 1, ErrorCode::unimplemented,
      "[strategy.TorchOptimizer] expected replicas that have parameters of their own, got '",
      parameters.front().name(), "', of which ", home_->replicas(),
      " replicas share one value; use MirroredStrategy, or cohort::Adam or another "
      "optimizer of cohort");
  COHORT_CHECK(home_->sharded_updates() == nullptr, ErrorCode::unimplemented,
               "[strategy.TorchOptimizer] expected a strategy without shard_optimizer_state, whose "
               "workers update shares of the parameters; use cohort::Adam or another optimizer of "
               "cohort, or leave out the option");
  tensors_.resize(home_->replicas());
  schedules_ = std::make_shared<TorchSchedules>(tensors_.size());
  for (const Variable& variable : parameters) {
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      tensors_[i].push_back(target_of(variable).variable.component(i));
  }
  gradients_ = std::make_shared<OptimizerGradients>(tensors_);
  home_->optimizer_gradients().add(gradients_);
}

OptimizedParameters::Indices OptimizedParameters::indices_of(
    std::size_t replica, const std::vector<std::vector<at::Tensor>>& groups) const {
  const std::vector<at::Tensor>& own = tensors_.at(replica);
  std::unordered_map<const c10::TensorImpl*, std::size_t> places;
  for (std::size_t i = 0; i < own.size(); ++i) places.emplace(own[i].unsafeGetTensorImpl(), i);
  Indices found;
  bool is_empty = true;
  for (const std::vector<at::Tensor>& group : groups) {
    std::vector<std::size_t>& indices = found.emplace_back();
    for (const at::Tensor& tensor : group) {
      const auto place = places.find(tensor.unsafeGetTensorImpl());
      COHORT_CHECK(place != places.end(), ErrorCode::invalid_argument,
                   "[strategy.TorchOptimizer] expected an optimizer of the tensors that the "
                   "function gets, got one of another tensor, ",
                   TensorSpec::of(tensor).to_string(), " (replica ", replica,
                   "); make it of the function's argument");
      indices.push_back(place->second);
    }
    is_empty = is_empty && indices.empty();
  }
  COHORT_CHECK(!is_empty, ErrorCode::invalid_argument,
               "[strategy.TorchOptimizer] expected an optimizer of the tensors that the function "
               "gets, got one without parameters (replica ",
               replica, ")");
  return found;
}

void OptimizedParameters::use_groups(const std::vector<Groups>& all) {
  const Indices first = indices_of(0, all.at(0));
  for (std::size_t replica = 1; replica < all.size(); ++replica) {
    COHORT_CHECK(
        indices_of(replica, all[replica]) == first, ErrorCode::invalid_argument,
        "[strategy.TorchOptimizer] expected optimizers with the same groups of parameters in "
        "all replicas, got others in replica ",
        replica, " than in replica 0; the function must do the same at each call");
  }
  used_.clear();
  for (const std::vector<std::size_t>& group : first)
    used_.insert(used_.end(), group.begin(), group.end());
  gradients_->use(used_);
  are_alike_ = true;
}

void OptimizedParameters::hand_over_by(StateFunctions functions) {
  // Several of one module are told apart by their order.
  const std::string name = "TorchOptimizer of '" + variables_.front().name() + "'";
  std::string key = name;
  const std::vector<std::shared_ptr<AttachedState>> others = home_->attached().all();
  const auto is_taken = [&] {
    return std::ranges::any_of(others, [&](const auto& other) { return other->key() == key; });
  };
  for (int i = 2; is_taken(); ++i) key = name + " (" + std::to_string(i) + ")";
  state_ =
      std::make_shared<OptimizerState>(std::move(key), std::move(functions), tensors_, schedules_);
  home_->attach(state_);
}

void OptimizedParameters::keep_newer_state() const {
  if (state_ == nullptr || !home_->keeps_newer_values()) return;
  const std::optional<Bytes> handed = home_->received().find_attached(state_->key());
  if (!handed) return;
  state_->load(*handed);
  log_warn("[strategy.TorchOptimizer] kept the state of ", state_->key(),
           ", which other workers have handed over, in place of what for_each() has set");
}

std::size_t OptimizedParameters::replica_here(std::string_view call) const {
  COHORT_CHECK(are_alike_, ErrorCode::failed_precondition,
               "[strategy.TorchOptimizer] expected optimizers that are alike in all replicas for ",
               call,
               "(), got some that a for_each() or a step may have left different when it threw; "
               "call for_each() with a function that does the same with each, after a step one "
               "that restores the state");
  COHORT_CHECK(function::Trace::current() == nullptr, ErrorCode::unimplemented,
               "[strategy.TorchOptimizer] expected ", call,
               "() outside of a traced step, got one inside, where an optimizer of torch::optim "
               "cannot keep its state; use cohort::Adam or another optimizer of cohort");
  const ReplicaContext* const replica = home_->replica_here();
  if (replica == nullptr) home_->check_use(call, variables_.front().name());
  COHORT_CHECK(replica != nullptr, ErrorCode::failed_precondition,
               "[strategy.TorchOptimizer] expected ", call,
               "() in a replica of the module's strategy, got a call outside of one; call it "
               "inside of its run()");
  return static_cast<std::size_t>(replica->local_replica_id());
}

void OptimizedParameters::check_outside_run(std::string_view call) const {
  COHORT_CHECK(!home_->is_in_replica(), ErrorCode::failed_precondition,
               "[strategy.TorchOptimizer] expected ", call,
               "() outside of run(), got a call in a replica, beside which others may be in a "
               "step; call it between two runs");
}

void OptimizedParameters::set_schedule(const LearningRateSchedule& rate,
                                       std::optional<std::size_t> group, std::size_t groups) {
  schedules_->set(rate, group, groups);
}
std::optional<double> OptimizedParameters::scheduled_rate(std::size_t replica,
                                                          std::size_t group) const {
  return schedules_->rate(replica, group);
}
std::int64_t OptimizedParameters::iterations() const { return schedules_->iterations(); }
void OptimizedParameters::set_iterations(std::int64_t iterations) {
  check_outside_run("set_iterations");
  COHORT_CHECK(iterations >= 0, ErrorCode::invalid_argument,
               "[strategy.TorchOptimizer] expected iterations >= 0, got ", iterations);
  if (home_->keeps_newer_values())
    return log_warn("[strategy.TorchOptimizer] kept ", schedules_->iterations(),
                    " iterations, which other workers have handed over, in place of ", iterations);
  schedules_->set_iterations(iterations);
}

void OptimizedParameters::set_gradients(std::size_t replica, const at::Tensor& loss) const {
  const bool has_gradient = check_loss(loss, variables_);
  if (has_gradient && !warnings_->look_at(loss))
    warnings_->look_at_step("minimize", variable::ReplicaCount::is_scaled());
  clear_gradients(replica);
  std::vector<at::Tensor> inputs;
  std::vector<std::size_t> owners;  // of the inputs, whose gradient theirs is a part of
  for (const std::size_t i : used_) {
    if (!of(replica)[i].requires_grad()) continue;
    inputs.push_back(of(replica)[i]);
    // A value that was read before the run is that of another component.
    for (at::Tensor& other : variables_[i].impl()->other_tensors())
      inputs.push_back(std::move(other));
    owners.resize(inputs.size(), i);
  }
  std::vector<at::Tensor> gradients = loss_gradients(loss, inputs, variables_);
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    if (!gradients[k].defined()) continue;
    const at::Tensor& own = of(replica)[owners[k]];
    at::Tensor& sum = own.mutable_grad();
    // The `change` of a step may write into it; that of several replicas is a copy.
    const bool is_dense = gradients[k].layout() == at::kStrided;
    if (is_dense && !home_->has_several_replicas() && !is_only_user(gradients[k]))
      gradients[k] = gradients[k].clone();
    at::Tensor gradient = on_device(std::move(gradients[k]), own.device());
    sum = sum.defined() ? sum.add(gradient) : std::move(gradient);
  }
}

void OptimizedParameters::clear_gradients(std::size_t replica, bool accumulate) const {
  gradients_->clear(replica, accumulate);
}
void OptimizedParameters::take_gradients(std::size_t replica) const {
  // Gradients of an earlier run may be scaled already.
  warnings_->look_at_step("step",
                          gradients_->were_carried() || variable::ReplicaCount::is_scaled());
  gradients_->settle(replica);
}
void OptimizedParameters::leave_gradients(std::size_t replica) const {
  for (const auto& each : home_->optimizer_gradients().all()) each->note_step(replica);
}
void OptimizedParameters::note_update(std::size_t replica) const {
  if (replica == 0) home_->look_for_plain_rows();
  schedules_->note_update(replica);
  home_->undo().note_update(replica);
}

void OptimizedParameters::sum_gradients(std::size_t replica, const void* optimizer,
                                        const std::function<TorchOptions()>& options) const {
  if (!home_->has_several_replicas()) return;
  OwnGradients own{optimizer, {}, {}};
  for (const std::size_t i : used_) {
    own.gradients.push_back(of(replica)[i].grad());
    own.are_trained.push_back(of(replica)[i].requires_grad());
  }
  const std::vector<at::Tensor> sums = StrategyAccess::merge(
      *home_->replica_here(), "TorchOptimizer::step",
      [this, &options](Strategy&, const PerReplica<OwnGradients>& all) {
        return sums_of(all, variables_, used_, *home_, options);
      },
      std::move(own));
  // An optimizer may write into its gradients, and the others still read the sums.
  for (std::size_t k = 0; k < used_.size(); ++k) {
    const at::Tensor& parameter = of(replica)[used_[k]];
    at::Tensor sum = sums[k];
    if (sum.defined())
      sum = sum.device() == parameter.device() ? sum.clone() : sum.to(parameter.device());
    parameter.mutable_grad() = std::move(sum);
  }
}

void OptimizedParameters::check_any_gradient(std::size_t replica) const {
  const bool is_any =
      std::ranges::any_of(used_, [&](std::size_t i) { return of(replica)[i].grad().defined(); });
  COHORT_CHECK(is_any, ErrorCode::invalid_argument, "[optimizer.minimize] ",
               no_gradient_text(variables_));
}

void OptimizedParameters::meet() const {
  if (!home_->has_several_replicas()) return;
  StrategyAccess::merge(*home_->replica_here(), "TorchOptimizer::step", [this](Strategy&) {
    if (!home_->has_workers()) return;
    home_->workers()->exchange({.call = "TorchOptimizer", .text = "step with a change"},
                               [] { return StrategyWorkers::Message{}; });
  });
}

void OptimizedParameters::equalize() const {
  if (!home_->is_mixed()) return;
  StrategyAccess::merge(*home_->replica_here(), "TorchOptimizer::step", [this](Strategy&) {
    const c10::NoGradGuard no_grad;
    for (std::size_t replica = 1; replica < replicas(); ++replica) {
      for (const std::size_t i : used_) of(replica)[i].copy_(of(0)[i]);
    }
  });
}

}  // namespace cohort::internal
