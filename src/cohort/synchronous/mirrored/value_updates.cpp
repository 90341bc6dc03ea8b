// SPDX-License-Identifier: Apache-2.0
#include "cohort/synchronous/mirrored/value_updates.h"

#include <algorithm>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/optimizer/loss_gradients.h"
#include "cohort/synchronous/mirrored/central_copies.h"
#include "cohort/synchronous/mirrored/mirrored_home.h"
#include "cohort/synchronous/workers/sharded_updates.h"
#include "cohort/synchronous/workers/worker_gradients.h"

namespace cohort::internal {

bool sum_over_workers(MirroredHome& home, const SlotKey& key, std::string_view what,
                      const std::vector<Variable>& variables, std::vector<Reduction::Parts>& sums,
                      std::span<const double> hyper) {
  const auto state = [&] { return home.attached().alike_in_steps(key.optimizer); };
  if (ShardedUpdates* const sharded = home.sharded_updates()) {
    sharded->step(key, what, variables, sums, hyper, state);
    return true;
  }
  home.gradients().sum(kApplyCall, what, variables, sums, numbers_of(key.rule, hyper), state);
  return false;
}

std::vector<at::Tensor> gradients_of_sums(const std::vector<Reduction::Parts>& sums,
                                          const std::vector<Variable>& variables) {
  std::vector<at::Tensor> gradients;
  for (const Reduction::Parts& sum : sums) gradients.push_back(gradient_of_sum(sum));
  COHORT_CHECK(std::ranges::any_of(gradients, [](const auto& g) { return g.defined(); }),
               ErrorCode::invalid_argument, "[optimizer.minimize] ", no_gradient_text(variables));
  return gradients;
}

void check_is_whole(const Variable& variable) {
  COHORT_CHECK(!target_of(variable).component, ErrorCode::unimplemented,
               "[optimizer.apply_gradients] expected whole variables in a replica context, got "
               "the component '",
               variable.name(), "'; update it in StrategyExtended::update()");
}

void apply_values(const SlotKey& key, const std::vector<ValueUpdate>& updates) {
  if (updates.empty()) return;
  if (CentralCopies* const central = updates.front().variable.mirrored_home().central())
    return central->apply(key, updates);
  std::vector<VariableState::Reserve> reserves;
  reserves.reserve(updates.size());
  for (const ValueUpdate& update : updates)
    reserves.push_back(update.variable.reserve(update.value, key, update.gradient, update.hyper));
  for (std::size_t i = 0; i < updates.size(); ++i) {
    const ValueUpdate& update = updates[i];
    if (update.is_of_all) {
      update.variable.apply_to_all(key, std::move(reserves[i]), update.gradient, update.hyper);
    } else {
      update.variable.apply(update.value, key, std::move(reserves[i]), update.hyper);
    }
  }
}

}  // namespace cohort::internal
