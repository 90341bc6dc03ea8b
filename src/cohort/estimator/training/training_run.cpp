// SPDX-License-Identifier: Apache-2.0
#include "cohort/estimator/training/training_run.h"

#include <ATen/core/TensorBody.h>

#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/estimator/strategy_kind.h"
#include "cohort/strategy/strategy_extended.h"
#include "cohort/strategy/strategy_function.h"

namespace cohort::estimator {
namespace {

// Without the graph of the step, which would keep its memory.
std::function<at::Tensor(const Nest&)> without_graph(
    std::function<at::Tensor(const Nest&)> train_step) {
  return [step = std::move(train_step)](const Nest& element) {
    const at::Tensor loss = step(element);
    COHORT_CHECK(loss.defined() && loss.numel() == 1, ErrorCode::invalid_argument,
                 "[estimator.train] expected train_step to return its loss, a tensor of one "
                 "number, got ",
                 loss.defined() ? std::to_string(loss.numel()) + " numbers" : "an undefined one",
                 "; return what minimize() was given");
    return loss.detach();
  };
}

std::unique_ptr<SharedSteps> shared_steps_of(Strategy& strategy) {
  if (kind_of(strategy) != StrategyKind::independent) return nullptr;
  return std::make_unique<SharedSteps>(dynamic_cast<v1::ParameterServerStrategy&>(strategy));
}

std::function<at::Tensor(const Nest&)> counted(std::function<at::Tensor(const Nest&)> train_step,
                                               SharedSteps& steps, bool is_traced) {
  return [step = std::move(train_step), &steps, is_traced](const Nest& element) {
    at::Tensor loss = step(element);
    steps.add_one(is_traced);
    return loss;
  };
}

}  // namespace

TrainingRun::TrainingRun(Model& model, const RunConfig& config, const InputFunction& input,
                         const TrainOptions& options)
    : model_(model),
      config_(config),
      input_(input),
      options_(options),
      hooks_(model.spec().training_hooks),
      shared_(shared_steps_of(model.strategy())),
      agreement_(model.strategy(), config.clock()),
      context_(model.strategy(), 0) {
  hooks_.insert(hooks_.end(), options.hooks.begin(), options.hooks.end());
  if (!shared_ || model.strategy().extended().should_checkpoint())
    saver_.emplace(model, config, options.saving_listeners);
}

std::int64_t TrainingRun::run() {
  restore();
  target_ = options_.steps ? std::optional(step_ + *options_.steps) : options_.max_steps;
  if (target_ && step_ >= *target_) {
    if (shared_) shared_->let_others_train(config_.model_dir());
    log_info("[estimator.train] has nothing to do: step ", step_, " of ", *target_, " is done");
    if (saver_ && shared_) saver_->save_what_nobody_has_saved(step_);
    return step_;
  }
  context_.set_step(step_, {});
  if (config_.options().save_summary_steps > 0)
    summaries_.emplace(model_.strategy(), config_.model_dir());
  for (const auto& hook : hooks_) hook->begin(context_);
  if (saver_) stops_ = saver_->begin(step_);
  if (shared_) shared_->let_others_train(config_.model_dir());
  reported_time_ = config_.clock().now();
  auto* const servers = dynamic_cast<ParameterServerStrategy*>(&model_.strategy());
  servers == nullptr ? run_on_replicas() : run_on_coordinator(*servers);
  if (saver_) saver_->end(step_);
  for (const auto& hook : hooks_) hook->end(context_);
  if (summaries_) summaries_->close();
  return step_;
}

// The servers of independent workers may have newer values than the checkpoint.
void TrainingRun::restore() {
  if (saver_) step_ = saver_->restore();
  if (shared_) step_ = shared_->read();
  reported_step_ = step_;
}

bool TrainingRun::has_more(std::int64_t begun) const {
  return !stops_ && (!target_ || begun < *target_);
}

void TrainingRun::before_step() {
  for (const auto& hook : hooks_) hook->before_step(context_);
}

void TrainingRun::after_step(std::function<at::Tensor()> loss, bool may_save) {
  const std::int64_t before = step_;
  step_ = shared_ ? shared_->read() : step_ + 1;
  model_.note_step();
  context_.set_step(step_, std::move(loss));
  for (const auto& hook : hooks_) hook->after_step(context_);
  report(before);
  const bool is_time = saver_ && saver_->is_due_by_time(step_);
  const WorkerAgreement::Wish agreed =
      agreement_.agree(step_, {.save = is_time, .stop = context_.wants_stop()});
  stops_ |= agreed.stop;
  if (!saver_ || !may_save || !(agreed.save || saver_->is_due_by_steps(step_))) return;
  if (saver_->save_if_possible(step_)) context_.request_stop();
  stops_ |= agreement_.agree(step_, {.stop = context_.wants_stop()}).stop;
}

// A line of the log, and points of the curves. Whether the line is wanted may differ between
// workers, which all must ask for the loss.
void TrainingRun::report(std::int64_t before) {
  const std::int64_t points = config_.options().save_summary_steps;
  const std::int64_t lines = config_.options().log_step_count_steps;
  // Steps of other workers are between those of this one, if they count together.
  const bool is_line = step_ / lines != before / lines;
  const bool is_point = points > 0 && step_ / points != before / points;
  if (!is_line && !is_point) return;
  const TimePoint now = config_.clock().now();
  const double seconds = std::chrono::duration<double>(now - reported_time_).count();
  const auto steps = static_cast<double>(step_ - reported_step_);
  const double rate = seconds > 0 ? steps / seconds : 0;
  reported_step_ = step_;
  reported_time_ = now;
  const double loss = context_.loss();
  if (is_line)
    log_info("[estimator.train] loss = ", loss, ", step = ", step_, " (", rate, " steps/s)");
  if (!is_point) return;
  summaries_->scalar("loss", loss, step_);
  summaries_->scalar("global_step/sec", rate, step_);
}

void TrainingRun::run_on_replicas() {
  Strategy& strategy = model_.strategy();
  auto step = without_graph(model_.spec().train_step);
  if (shared_) step = counted(std::move(step), *shared_, model_.spec().is_traced);
  std::optional<StrategyFunction<std::function<at::Tensor(const Nest&)>>> traced;
  if (model_.spec().is_traced) traced.emplace(strategy.function(step));
  const DistributedDataset data = strategy.distribute_datasets_from_function(
      [this](const InputContext& context) { return input_(context); });
  DistributedIterator elements = data.iterator();
  while (has_more(step_)) {
    before_step();
    const std::optional<DistributedElement> element = elements.try_next();
    if (!element) break;
    const PerReplica<at::Tensor> losses =
        traced ? (*traced)(*element) : strategy.run(step, *element);
    after_step(
        [&strategy, losses] {
          return losses.is_wrapped() ? strategy.reduce(ReduceOp::sum, losses) : losses[0];
        },
        true);
  }
}

void TrainingRun::run_on_coordinator(ParameterServerStrategy& strategy) {
  ClusterCoordinator coordinator(strategy);
  bool has_end = true;
  const std::function<Dataset(const InputContext&)> make = [&](const InputContext& context) {
    Dataset data = input_(context);
    has_end = has_end && data.cardinality() != kInfiniteCardinality;
    return data;
  };
  const PerWorkerDataset data = coordinator.create_per_worker_dataset(make);
  const auto step = without_graph(model_.spec().train_step);
  // In a replica context, as the steps of other strategies have it.
  const Function drawn(
      [step, &strategy](Iterator& elements) { return strategy.run(step, elements.get_next())[0]; });
  has_end ? run_epoch(coordinator, drawn, data) : run_scheduled(coordinator, drawn, data);
  coordinator.join();
}

}  // namespace cohort::estimator
