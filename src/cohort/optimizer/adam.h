// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cohort/optimizer/learning_rate_schedule.h"
#include "cohort/optimizer/optimizer.h"

namespace cohort {

struct AdamOptions {
  LearningRateSchedule learning_rate = 0.001;  // a number or a schedule
  double beta_1 = 0.9;
  double beta_2 = 0.999;
  double epsilon = 1e-7;
  // Coupled, as in torch::optim::Adam: weight_decay * p is added to the gradient, and so enters m
  // and v. For the decoupled weight_decay of tf.keras.optimizers.Adam use AdamW. With 0 there is no
  // decay and no such hyperparameter.
  double weight_decay = 0.0;
  std::string name = {};  // finds its slots; empty: one of its own (Optimizer)
};

// m = b1*m + (1-b1)*g, v = b2*v + (1-b2)*g*g, p -= lr*sqrt(1-b2^t)/(1-b1^t) * m/(sqrt(v)+eps).
// epsilon is not bias-corrected (tf.keras.optimizers.Adam; torch::optim::Adam corrects it). t
// counts the steps of each variable and is stored with it.
class COHORT_API Adam : public Optimizer {
 public:
  explicit Adam(std::vector<Variable> variables, AdamOptions options = {});
};

namespace optimizer {
COHORT_API const UpdateRule& adam_rule();
COHORT_API const UpdateRule& adam_weight_decay_rule();
}  // namespace optimizer

}  // namespace cohort
