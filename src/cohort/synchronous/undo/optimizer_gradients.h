// SPDX-License-Identifier: Apache-2.0
// Which gradients in grad() of its parameters count in the next step of a TorchOptimizer.
//
// A backward pass adds to grad() of every parameter that it reaches, also of those that belong to
// another optimizer. LibTorch's own programs call zero_grad() before each step; here it is as if
// they did, unless they say that gradients shall accumulate.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/synchronous/undo/step_undo.h"

namespace cohort::internal {

// The parameters of one module, of which one optimizer trains some. A call for a replica is made
// from its thread, or while no run is in progress.
class OptimizerGradients {
 public:
  // The parameters of each replica.
  explicit OptimizerGradients(std::vector<std::vector<at::Tensor>> parameters);

  // Sets the parameters that the optimizer trains, by their numbers. Others are not looked at.
  void use(std::vector<std::size_t> used);
  // Clears the gradients of the trained parameters. If they `accumulate`, all that are added from
  // now on count, also in later runs, until the next clear().
  void clear(std::size_t replica, bool accumulate);
  // Before a step: drops what is left over from another optimizer's step, if a later backward pass
  // has added gradients. Throws failed_precondition if some that accumulate are lost.
  void settle(std::size_t replica);
  // Another optimizer, or this one, has made a step: what is in grad() now has been used, or has
  // been left out, and later gradients must not be added to it.
  void note_step(std::size_t replica);

  // Around a run that no other overlaps.
  void begin_run();
  // Whether gradients that accumulate were there when it began.
  bool were_carried() const { return was_carried_; }
  void undo_run();
  // A run has failed while another one was in progress.
  void note_damage();
  // Clears all gradients, and ends accumulation. Returns whether any accumulated.
  bool forget();

 private:
  // The state of one parameter in one replica. The hook of the tensor shares it.
  struct Mark {
    bool is_left_over = false;
    bool has_hook = false;
  };
  struct Replica {
    std::vector<at::Tensor> parameters;
    std::vector<std::shared_ptr<Mark>> marks;
    bool accumulates = false;
    bool accumulated_before = false;  // when the run began
    bool is_damaged = false;          // some gradients that accumulate are lost
  };
  bool has_gradients(const Replica& replica) const;
  static void drop(Replica& replica, std::size_t i);
  static void mark(const at::Tensor& parameter, const std::shared_ptr<Mark>& mark);

  std::vector<Replica> replicas_;
  std::vector<std::size_t> used_;
  bool was_carried_ = false;  // gradients were there when the run began
};

// The gradients of all optimizers of a strategy. Thread-safe, but see OptimizerGradients.
class AllOptimizerGradients {
 public:
  void add(const std::shared_ptr<OptimizerGradients>& one);
  // All that still exist.
  std::vector<std::shared_ptr<OptimizerGradients>> all();
  // OptimizerGradients::forget() of all, with a warning if gradients are lost.
  void forget();

 private:
  std::atomic<bool> is_empty_ = true;
  Mutex mutex_;
  std::vector<std::weak_ptr<OptimizerGradients>> all_ COHORT_GUARDED_BY(mutex_);
};

// Around a run; `undo` outlives it.
class GradientsScope {
 public:
  GradientsScope(AllOptimizerGradients& all, const StepUndo::Scope& undo) : all_(all), undo_(undo) {
    if (!undo_.is_alone()) return;
    for (const auto& each : all_.all()) each->begin_run();
  }
  ~GradientsScope() {
    if (!undo_.has_failed() || undo_.is_inner()) return;
    for (const auto& each : all_.all()) {
      if (undo_.is_alone()) {
        each->undo_run();
      } else {
        each->note_damage();
      }
    }
  }
  GradientsScope(const GradientsScope&) = delete;
  GradientsScope& operator=(const GradientsScope&) = delete;

 private:
  AllOptimizerGradients& all_;
  const StepUndo::Scope& undo_;
};

}  // namespace cohort::internal
