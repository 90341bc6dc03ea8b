// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cohort/optimizer/learning_rate_schedule.h"
#include "cohort/optimizer/optimizer.h"

namespace cohort {

struct SGDOptions {
  LearningRateSchedule learning_rate = 0.01;  // a number or a schedule
  double momentum = 0.0;                      // 0: plain SGD, without a slot
  bool nesterov = false;                      // requires momentum > 0
  // Coupled, as in torch::optim::SGD: g + weight_decay * p replaces g. Without momentum this equals
  // the decoupled decay of tf.keras.optimizers.SGD; with momentum the decay accumulates here. With
  // 0 there is no decay and no such hyperparameter.
  double weight_decay = 0.0;
  std::string name = {};  // finds its slots; empty: one of its own (Optimizer)
};

// p -= lr*g; with momentum a = m*a + g, p -= lr*a; with nesterov p -= lr*(g + m*a).
// As tf.compat.v1.train.MomentumOptimizer. tf.keras.optimizers.SGD gives the same as long as the
// learning rate does not change (its accumulator includes lr).
class COHORT_API SGD : public Optimizer {
 public:
  explicit SGD(std::vector<Variable> variables, SGDOptions options = {});
};

namespace optimizer {
COHORT_API const UpdateRule& sgd_rule();
COHORT_API const UpdateRule& momentum_rule();
COHORT_API const UpdateRule& nesterov_rule();
COHORT_API const UpdateRule& sgd_weight_decay_rule();
COHORT_API const UpdateRule& momentum_weight_decay_rule();
COHORT_API const UpdateRule& nesterov_weight_decay_rule();
}  // namespace optimizer

}  // namespace cohort
