// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cohort/optimizer/learning_rate_schedule.h"
#include "cohort/optimizer/optimizer.h"

namespace cohort {

struct RMSpropOptions {
  LearningRateSchedule learning_rate = 0.001;  // a number or a schedule
  double decay = 0.9;
  double epsilon = 1e-10;
  std::string name = {};  // finds its slots; empty: one of its own (Optimizer)
};

// r = d*r + (1-d)*g*g, p -= lr*g/sqrt(r + eps); r starts at 1 (tf.compat.v1.train.RMSPropOptimizer
// without momentum).
class COHORT_API RMSprop : public Optimizer {
 public:
  explicit RMSprop(std::vector<Variable> variables, RMSpropOptions options = {});
};

namespace optimizer {
COHORT_API const UpdateRule& rmsprop_rule();
}  // namespace optimizer

}  // namespace cohort
