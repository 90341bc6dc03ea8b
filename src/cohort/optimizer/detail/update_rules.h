// SPDX-License-Identifier: Apache-2.0
// The update rules of the kinds of optimizers.
#pragma once

#include "cohort/core/export.h"
#include "cohort/variable/update_rule.h"

namespace cohort::optimizer {

COHORT_API const variable::UpdateRule& sgd_rule();
COHORT_API const variable::UpdateRule& momentum_rule();
COHORT_API const variable::UpdateRule& nesterov_rule();
COHORT_API const variable::UpdateRule& sgd_weight_decay_rule();
COHORT_API const variable::UpdateRule& momentum_weight_decay_rule();
COHORT_API const variable::UpdateRule& nesterov_weight_decay_rule();
COHORT_API const variable::UpdateRule& rmsprop_rule();
COHORT_API const variable::UpdateRule& adagrad_rule();
COHORT_API const variable::UpdateRule& adam_rule();
COHORT_API const variable::UpdateRule& adam_weight_decay_rule();
COHORT_API const variable::UpdateRule& adamw_rule();

}  // namespace cohort::optimizer
