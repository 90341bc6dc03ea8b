// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cohort/optimizer/learning_rate_schedule.h"
#include "cohort/optimizer/optimizer.h"

namespace cohort {

struct AdagradOptions {
  LearningRateSchedule learning_rate = 0.001;  // a number or a schedule
  double initial_accumulator = 0.1;            // > 0; used when a variable gets its first gradient
  std::string name = {};                       // finds its slots; empty: one of its own (Optimizer)
};

// a += g*g, p -= lr*g/sqrt(a); a starts at initial_accumulator
// (tf.compat.v1.train.AdagradOptimizer).
class COHORT_API Adagrad : public Optimizer {
 public:
  explicit Adagrad(std::vector<Variable> variables, AdagradOptions options = {});
};

namespace optimizer {
COHORT_API const UpdateRule& adagrad_rule();
}  // namespace optimizer

}  // namespace cohort
