// SPDX-License-Identifier: Apache-2.0
#include "cohort/estimator/training/worker_agreement.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "cohort/estimator/strategy_kind.h"
#include "cohort/strategy/strategy_extended.h"

namespace cohort::estimator {

WorkerAgreement::WorkerAgreement(Strategy& strategy, const Clock& clock)
    : strategy_(strategy),
      clock_(clock),
      is_shared_(kind_of(strategy) == StrategyKind::collective),
      asked_(clock.now()) {}

// Twice or half of the last one, so that about a second passes between two questions.
std::int64_t WorkerAgreement::next_interval() const {
  constexpr std::int64_t kMax = std::int64_t{1} << 20;
  const Duration passed = clock_.now() - asked_;
  if (passed < std::chrono::milliseconds(700)) return std::min(2 * interval_, kMax);
  return passed > std::chrono::milliseconds(1400) ? std::max<std::int64_t>(interval_ / 2, 1)
                                                  : interval_;
}

WorkerAgreement::Wish WorkerAgreement::agree(std::int64_t step, Wish own) {
  if (!is_shared_) return own;
  open_.save |= own.save;
  open_.stop |= own.stop;
  if (step < next_step_) return {};
  const bool is_first = strategy_.extended().should_checkpoint();
  at::Tensor wishes = at::empty({3}, at::TensorOptions(at::kLong));
  auto* const numbers = wishes.data_ptr<std::int64_t>();
  numbers[0] = is_first && open_.save ? 1 : 0;
  numbers[1] = open_.stop ? 1 : 0;
  numbers[2] = is_first ? next_interval() : 0;
  const at::Tensor agreed = strategy_.reduce(ReduceOp::max, wishes);
  const auto* const all = agreed.data_ptr<std::int64_t>();
  interval_ = all[2];
  next_step_ = step + interval_;
  asked_ = clock_.now();
  open_ = {};
  return {.save = all[0] != 0, .stop = all[1] != 0};
}

}  // namespace cohort::estimator
