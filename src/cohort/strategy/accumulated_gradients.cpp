// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/TensorBody.h>
#include <ATen/ops/zeros.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/optimizer/optimizer.h"
#include "cohort/strategy/contexts.h"
#include "cohort/strategy/replica_context.h"
#include "cohort/strategy/strategy.h"
#include "cohort/strategy/strategy_access.h"
#include "cohort/variable/row_gradient.h"

namespace cohort {
namespace {

constexpr std::string_view kAccumulated = "strategy.AccumulatedGradients";

at::Tensor zeros_of(const Variable& variable) {
  return at::zeros(*variable.spec().sizes, at::TensorOptions(variable.spec().dtype));
}

}  // namespace

AccumulatedGradients::AccumulatedGradients(Strategy& strategy, const Optimizer& optimizer)
    : optimizer_(std::make_shared<const Optimizer>(optimizer)) {
  internal::check_can_run(strategy, "AccumulatedGradients");
  COHORT_CHECK(!internal::StrategyAccess::traits(strategy).is_asynchronous,
               ErrorCode::unimplemented, "[", kAccumulated,
               "] expected a synchronous strategy, got '", strategy.name(),
               "', whose workers would add to one sum; make one larger batch, or call "
               "compute_gradients() of the sum of several losses in one step");
  const auto replicas =
      static_cast<std::size_t>(internal::StrategyAccess::num_local_replicas(strategy));
  for (const Variable& variable : optimizer.variables()) {
    COHORT_CHECK(!variable.impl()->is_table(), ErrorCode::unimplemented, "[", kAccumulated,
                 "] expected variables of a synchronous strategy, got the table '", variable.name(),
                 "'");
    sums_.push_back(strategy.variable("accumulated/" + variable.name(), zeros_of(variable),
                                      {.is_trainable = false,
                                       .synchronization = VariableSynchronization::on_read,
                                       .aggregation = VariableAggregation::sum}));
    const std::size_t own = strategy.local_results(sums_.back()).size();
    COHORT_CHECK(own == replicas, ErrorCode::unimplemented, "[", kAccumulated,
                 "] expected replicas that have values of their own, got '", strategy.name(),
                 "', of which ", replicas, " replicas share one; use MirroredStrategy");
  }
}

void AccumulatedGradients::check_replica(std::string_view call) const {
  COHORT_CHECK(get_replica_context() != nullptr, ErrorCode::failed_precondition, "[", kAccumulated,
               "] expected a replica context for ", call, "(), got cross-replica context of '",
               get_strategy().name(), "'; call it inside run() or a step of function()");
}

void AccumulatedGradients::add(const at::Tensor& loss) const {
  check_replica("add");
  std::unordered_map<const VariableImpl*, at::Tensor> gradients;
  for (auto& [gradient, variable] : optimizer_->compute_gradients(loss))
    gradients.emplace(variable.impl().get(), gradient);
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    const auto found = gradients.find(optimizer_->variables()[i].impl().get());
    if (found == gradients.end() || !found->second.defined()) continue;
    at::Tensor gradient = found->second.detach();
    if (gradient.layout() == at::kSparse) gradient = variable::dense_of(gradient);
    sums_[i].assign_add(gradient);
  }
}

std::vector<std::pair<at::Tensor, Variable>> AccumulatedGradients::take() const {
  check_replica("take");
  std::vector<std::pair<at::Tensor, Variable>> gradients;
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    const Variable& variable = optimizer_->variables()[i];
    if (!variable.is_trainable() || !variable.tensor().requires_grad()) continue;
    gradients.emplace_back(sums_[i].tensor().detach().clone(), variable);
    sums_[i].assign(zeros_of(variable).to(variable.tensor().device()));
  }
  return gradients;
}

}  // namespace cohort
