// SPDX-License-Identifier: Apache-2.0
// Code of the program that runs beside the steps of Estimator::train(), and beside its checkpoints
// (tf.estimator.SessionRunHook, CheckpointSaverListener).
//
//   struct StopAtLowLoss final : estimator::TrainingHook {
//     void after_step(estimator::HookContext& context) override {
//       if (context.global_step() % 100 == 0 && context.loss() < 0.1) context.request_stop();
//     }
//   };
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "cohort/core/export.h"

namespace cohort {
class Strategy;  // strategy/strategy.h
}

namespace cohort::estimator {

// The training as a hook sees it (tf's SessionRunContext). Used only from the thread of train(),
// inside of a hook.
class COHORT_API HookContext {
 public:
  HookContext(Strategy& strategy, std::int64_t global_step)
      : strategy_(strategy), global_step_(global_step) {}

  Strategy& strategy() const { return strategy_; }
  // The number of steps that have ended, those before the last restart among them.
  std::int64_t global_step() const { return global_step_; }
  // The loss of the step that has just ended, summed over all replicas. Where several workers train
  // together, all make this call. Throws failed_precondition before the first step.
  double loss();
  // The training ends after this step, with a checkpoint. Where several workers train together, any
  // may ask; all end at one step, which may be about a second later.
  void request_stop() { wants_stop_ = true; }
  bool wants_stop() const { return wants_stop_; }

  // For train(): a step has ended. `loss` is called at most once.
  void set_step(std::int64_t global_step, std::function<at::Tensor()> loss);

 private:
  Strategy& strategy_;
  std::int64_t global_step_;
  std::function<at::Tensor()> make_loss_;  // empty once it was called
  std::optional<double> loss_;
  bool wants_stop_ = false;
};

// Each method is called on the thread of train(), on every worker that trains. An
// exception ends the training, without a checkpoint.
class COHORT_API TrainingHook {
 public:
  virtual ~TrainingHook() = default;
  // The model is made and restored, and no step has run (after_create_session).
  virtual void begin(HookContext& /*context*/) {}
  // On a coordinator, steps run ahead: this is before one is scheduled (before_run).
  virtual void before_step(HookContext& /*context*/) {}
  virtual void after_step(HookContext& /*context*/) {}  // (after_run)
  // After the last step and its checkpoint; not after an error.
  virtual void end(HookContext& /*context*/) {}
};

// Is called around each checkpoint of a training, on every worker that takes part in it.
class COHORT_API SavingListener {
 public:
  virtual ~SavingListener() = default;
  virtual void begin() {}
  virtual void before_save(std::int64_t /*global_step*/) {}
  // The checkpoint is on the disk. Returns true if the training shall stop.
  virtual bool after_save(std::int64_t /*global_step*/) { return false; }
  // After the last checkpoint.
  virtual void end(std::int64_t /*global_step*/) {}
};

}  // namespace cohort::estimator
