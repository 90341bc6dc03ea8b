// SPDX-License-Identifier: Apache-2.0
#include "cohort/synchronous/undo/optimizer_gradients.h"

#include <ATen/core/TensorBody.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/optimizer/loss_gradients.h"

namespace cohort::internal {

OptimizerGradients::OptimizerGradients(std::vector<std::vector<at::Tensor>> parameters) {
  for (std::vector<at::Tensor>& own : parameters) {
    Replica& replica = replicas_.emplace_back();
    for (std::size_t i = 0; i < own.size(); ++i) replica.marks.push_back(std::make_shared<Mark>());
    replica.parameters = std::move(own);
  }
}

void OptimizerGradients::drop(Replica& replica, std::size_t i) {
  replica.parameters[i].mutable_grad().reset();
  replica.marks[i]->is_left_over = false;
}

bool OptimizerGradients::has_gradients(const Replica& replica) const {
  return std::ranges::any_of(used_,
                             [&](std::size_t i) { return replica.parameters[i].grad().defined(); });
}

// If a group is added later, the gradients that its grad() then has were computed for no step of
// this optimizer.
void OptimizerGradients::use(std::vector<std::size_t> used) {
  for (const std::size_t i : used) {
    if (std::ranges::find(used_, i) != used_.end()) continue;
    for (Replica& replica : replicas_) {
      if (replica.parameters[i].grad().defined()) mark(replica.parameters[i], replica.marks[i]);
    }
  }
  used_ = std::move(used);
}

// Autograd calls the hook before it adds the gradient of a later pass, which then begins at zero.
// The hook stays, since LibTorch's list of hooks never gets shorter.
void OptimizerGradients::mark(const at::Tensor& parameter, const std::shared_ptr<Mark>& mark) {
  mark->is_left_over = true;
  if (mark->has_hook || !parameter.requires_grad()) return;
  mark->has_hook = true;
  c10::TensorImpl* const impl = parameter.unsafeGetTensorImpl();  // which owns the hook
  parameter.register_hook([impl, mark](const at::Tensor&) {
    if (is_in_left_out_hooks()) return;  // of minimize(), which adds nothing to grad()
    if (!std::exchange(mark->is_left_over, false)) return;
    impl->mutable_grad().reset();
  });
}

void OptimizerGradients::clear(std::size_t replica, bool accumulate) {
  Replica& own = replicas_[replica];
  for (const std::size_t i : used_) drop(own, i);
  own.accumulates = accumulate;
  own.is_damaged = false;
}

void OptimizerGradients::settle(std::size_t replica) {
  Replica& own = replicas_[replica];
  COHORT_CHECK(!own.is_damaged, ErrorCode::failed_precondition,
               "[strategy.TorchOptimizer] expected gradients of whole steps, got some that "
               "accumulate since a zero_grad() before a run() that has failed, which may have left "
               "them in only some replicas; call zero_grad() in all replicas, and make the "
               "backward passes since then again");
  const bool is_new = std::ranges::any_of(used_, [&](std::size_t i) {
    return own.parameters[i].grad().defined() && !own.marks[i]->is_left_over;
  });
  for (const std::size_t i : used_) {
    if (own.marks[i]->is_left_over && is_new) drop(own, i);
  }
}

void OptimizerGradients::note_step(std::size_t replica) {
  Replica& own = replicas_[replica];
  if (own.accumulates) return;
  for (const std::size_t i : used_) {
    if (own.parameters[i].grad().defined()) mark(own.parameters[i], own.marks[i]);
  }
}

void OptimizerGradients::begin_run() {
  bool is_unused = false;
  was_carried_ = false;
  for (Replica& replica : replicas_) {
    replica.accumulated_before = replica.accumulates;
    if (replica.accumulates) {
      was_carried_ = was_carried_ || has_gradients(replica);
      continue;
    }
    for (const std::size_t i : used_) {
      if (!replica.parameters[i].grad().defined()) continue;
      is_unused = is_unused || !replica.marks[i]->is_left_over;
      drop(replica, i);
    }
  }
  static std::atomic<bool> has_warned{false};
  if (!is_unused || has_warned.exchange(true)) return;
  log_warn(
      "[strategy.TorchOptimizer] got gradients that were computed before this run() and that "
      "no step() has used; they are cleared, so that they do not count in the steps of this "
      "run. If gradients of several runs shall add up, call zero_grad() in the first of them, "
      "before backward(), and step() in the last");
}

void OptimizerGradients::undo_run() {
  if (was_carried_) return note_damage();
  for (Replica& replica : replicas_) {
    for (const std::size_t i : used_) drop(replica, i);
    replica.accumulates = replica.accumulated_before;
  }
}

void OptimizerGradients::note_damage() {
  for (Replica& replica : replicas_) replica.is_damaged = replica.is_damaged || replica.accumulates;
}

bool OptimizerGradients::forget() {
  bool was_accumulating = false;
  for (Replica& replica : replicas_) {
    was_accumulating =
        was_accumulating || (replica.accumulates && (has_gradients(replica) || replica.is_damaged));
    for (const std::size_t i : used_) drop(replica, i);
    replica.accumulates = false;
    replica.is_damaged = false;
  }
  return was_accumulating;
}

void AllOptimizerGradients::add(const std::shared_ptr<OptimizerGradients>& one) {
  const Lock lock(mutex_);
  std::erase_if(all_, [](const auto& each) { return each.expired(); });
  all_.push_back(one);
  is_empty_ = false;
}

std::vector<std::shared_ptr<OptimizerGradients>> AllOptimizerGradients::all() {
  std::vector<std::shared_ptr<OptimizerGradients>> alive;
  if (is_empty_) return alive;
  const Lock lock(mutex_);
  for (const auto& weak : all_) {
    if (auto one = weak.lock()) alive.push_back(std::move(one));
  }
  return alive;
}

void AllOptimizerGradients::forget() {
  bool was_accumulating = false;
  for (const auto& one : all()) was_accumulating = one->forget() || was_accumulating;
  if (!was_accumulating) return;
  log_warn(
      "[strategy.rebuild] cleared gradients of a TorchOptimizer that accumulated over several "
      "runs, since the run that has failed may have left them in only some replicas; make the "
      "backward passes since the last zero_grad() again");
}

}  // namespace cohort::internal
