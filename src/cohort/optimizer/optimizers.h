// SPDX-License-Identifier: Apache-2.0
// The kinds of optimizers: SGD with momentum, RMSprop, Adagrad, Adam and AdamW.
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

}  // namespace cohort
