// SPDX-License-Identifier: Apache-2.0
#include "cohort/replicas/step_run.h"

#include <utility>

#include "cohort/core/error.h"
#include "cohort/replicas/replica_run.h"
#include "cohort/replicas/spin_wait.h"

namespace cohort::internal {

StepRun::StepRun(std::size_t replicas, std::size_t meetings)
    : count_(replicas),
      meetings_(meetings),
      offers_(replicas * meetings),
      inputs_(replicas),
      errors_(replicas),
      was_released_(replicas) {}

void StepRun::begin() {
  state_.store(0, std::memory_order_relaxed);
  for (std::size_t i = 0; i < count_; ++i) {
    errors_[i] = nullptr;
    was_released_[i] = 0;
  }
}

void StepRun::end() {
  for (StepOffer& offer : offers_) offer.values.clear();
  for (std::vector<at::Tensor>& inputs : inputs_) inputs.clear();
}

bool StepRun::arrive(std::uint32_t arrivals) {
  const auto have_come = [&](std::uint32_t state) { return (state & ~kFailed) >= arrivals; };
  const std::uint32_t before = state_.fetch_add(1, std::memory_order_acq_rel);
  if (have_come(before + 1)) {
    state_.notify_all();
    return true;
  }
  std::uint32_t state = 0;
  const auto is_over = [&] {
    state = state_.load(std::memory_order_acquire);
    return have_come(state) || (state & kFailed) != 0;
  };
  if (spin_until(is_over)) return have_come(state);
  while (!is_over()) state_.wait(state, std::memory_order_acquire);
  return have_come(state);
}

void StepRun::fail(std::size_t replica, std::exception_ptr error) {
  errors_[replica] = std::move(error);
  state_.fetch_or(kFailed, std::memory_order_acq_rel);
  state_.notify_all();
}

void StepRun::rethrow_error() const {
  rethrow_first(errors_, {was_released_.begin(), was_released_.end()}, 0);
}

StepReplica::StepReplica(StepRun& run, std::size_t index, const Calls& calls,
                         std::vector<at::Tensor> inputs, std::span<const at::Tensor> variables)
    : run_(run), index_(index), calls_(calls), variables_(variables) {
  run_.inputs_[index] = std::move(inputs);
}

void StepReplica::meet() {
  arrivals_ += static_cast<std::uint32_t>(run_.count_);
  if (run_.count_ == 1 || run_.arrive(arrivals_)) return;
  run_.was_released_[index_] = 1;
  throw_error(ErrorCode::cancelled, "[strategy.function] another replica failed while replica ",
              index_, " waited for it");
}

std::vector<at::Tensor> StepReplica::call(std::int64_t number, std::vector<at::Tensor> values) {
  return calls_[static_cast<std::size_t>(number)]->run(*this, std::move(values));
}

// The program computes with the variables themselves.
std::vector<at::Tensor> StepReplica::next_segment(std::span<const std::int64_t> variables) {
  std::vector<at::Tensor> values;
  values.reserve(variables.size());
  for (const std::int64_t variable : variables)
    values.push_back(variables_[static_cast<std::size_t>(variable)]);
  return values;
}

std::vector<at::Tensor> StepReplica::iterator_next(std::int64_t) { COHORT_ASSERT(false); }
void StepReplica::update(Effect) { COHORT_ASSERT(false); }

}  // namespace cohort::internal
