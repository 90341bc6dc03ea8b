// SPDX-License-Identifier: Apache-2.0
#include "cohort/estimator/strategy_kind.h"

#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/strategy/strategy_extended.h"
#include "cohort/v1/parameter_server_strategy.h"

namespace cohort::estimator {

StrategyKind kind_of(Strategy& strategy) {
  if (dynamic_cast<ParameterServerStrategy*>(&strategy) != nullptr)
    return StrategyKind::coordinator;
  if (!strategy.extended().in_multi_worker_mode()) return StrategyKind::alone;
  const bool is_independent = dynamic_cast<v1::ParameterServerStrategy*>(&strategy) != nullptr;
  return is_independent ? StrategyKind::independent : StrategyKind::collective;
}

}  // namespace cohort::estimator
