// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cohort/optimizer/learning_rate_schedule.h"
#include "cohort/optimizer/optimizer.h"

namespace cohort {

struct AdamWOptions {
  LearningRateSchedule learning_rate = 0.001;  // a number or a schedule
  double weight_decay = 0.004;                 // torch::optim::AdamW's default is 0.01
  double beta_1 = 0.9;
  double beta_2 = 0.999;
  double epsilon = 1e-7;
  std::string name = {};  // finds its slots; empty: one of its own (Optimizer)
};

// Adam with decoupled weight decay (tf.keras.optimizers.AdamW, torch::optim::AdamW): first
// p *= 1 - lr*weight_decay, then Adam's step with the plain gradient, so that the decay does not
// enter m and v. Slots and epsilon are Adam's. The decay applies to every variable of the
// optimizer: give biases and scales to a second optimizer with weight_decay = 0.
class COHORT_API AdamW : public Optimizer {
 public:
  explicit AdamW(std::vector<Variable> variables, AdamWOptions options = {});
};

namespace optimizer {
COHORT_API const UpdateRule& adamw_rule();
}  // namespace optimizer

}  // namespace cohort
