// SPDX-License-Identifier: Apache-2.0
// Optimizers: gradients by autograd, then one update rule on each variable, on the variable's task.
//
//   cohort::Adam optimizer(model.parameters(), {.learning_rate = 1e-3});
//   optimizer.minimize(loss);      // inside a step
// Formulas and slots follow TensorFlow's, not torch::optim's.
//
// Hyperparameters are float64 numbers, also on the wire. A rule rounds them to the variable's
// dtype, for float32 variables to float32, after the calculations that use only hyperparameters
// (Adam's bias correction, AdamW's 1 - lr*weight_decay).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/optimizer/learning_rate_schedule.h"
#include "cohort/variable/variable.h"

namespace cohort {

// A shared handle; copies are the same optimizer. A new optimizer begins with fresh slots, whatever
// its variables had before; variables keep the slots of all their optimizers. Thread-safe: steps
// may run and be scheduled while another thread sets a hyperparameter.
class COHORT_API Optimizer {
 public:
  // Applies the gradients of a scalar `loss` for every trainable variable; a variable without a
  // gradient is left alone. Throws invalid_argument if loss is not a floating-point scalar or
  // depends on none of the variables; unimplemented in a replica context of several replicas, whose
  // gradients are not reduced yet: use compute_gradients() in run(), Strategy::reduce() and,
  // outside, apply_gradients().
  void minimize(const at::Tensor& loss) const;
  // The first half of minimize(), for changing gradients before they are applied: (gradient,
  // variable) for each trainable variable, undefined if loss does not depend on it (tf's
  // compute_gradients).
  std::vector<std::pair<at::Tensor, Variable>> compute_gradients(const at::Tensor& loss) const;
  // The second half of minimize(); skips undefined gradients. unimplemented where minimize() is.
  void apply_gradients(const std::vector<std::pair<at::Tensor, Variable>>& gradients) const;

  // The learning rate of the next update.
  double learning_rate() const { return hyperparameter("learning_rate"); }
  // A number or a schedule, which replaces the present one from the next scheduled step on, in an
  // epoch from the next one that is sent, without a new trace. invalid_argument if its value at
  // iterations() is negative or not finite.
  void set_learning_rate(const LearningRateSchedule& learning_rate);
  // How many updates were made (tf.keras.optimizers.Optimizer.iterations): the step at which a
  // schedule is evaluated. Each apply_gradients() that runs in this process is counted when it is
  // done. A step on parameter servers takes its number before it runs, in schedule(), or in an
  // epoch when it is sent to its worker: one for each apply_gradients() in it, even if it is
  // retried or fails. So step i of a program has the same rate however many closures are in flight,
  // and set_iterations() before the first step resumes a training. One that is cancelled before it
  // runs leaves its number to the next step.
  // Both are failed_precondition inside a traced step; negative numbers are invalid_argument.
  std::int64_t iterations() const;
  void set_iterations(std::int64_t iterations);
  // A hyperparameter by the rule's name for it; not_found for another name, with the list.
  // set_hyperparameter() accepts the range that the constructor accepts; "learning_rate" replaces a
  // schedule. Neither can be part of a traced step (failed_precondition): pass the number as an
  // argument, and set it between two calls of schedule().
  double hyperparameter(std::string_view name) const;
  void set_hyperparameter(std::string_view name, double value);
  const std::vector<Variable>& variables() const;
  const UpdateRule& rule() const;

 protected:
  // `hyper` are those after the learning rate, in the rule's order; invalid_argument for a value
  // out of range.
  Optimizer(std::vector<Variable> variables, const UpdateRule& rule,
            const LearningRateSchedule& learning_rate, const std::vector<double>& hyper);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// "sgd", "momentum", "nesterov", "adagrad", "rmsprop", "adam", "adamw" and those with coupled
// weight decay ("sgd_weight_decay", …); not_found for another name, with the list. A '#' and the
// number of the optimizer that owns the slots may follow: "adam#2".
COHORT_API const UpdateRule& update_rule_of(std::string_view name);
COHORT_API std::vector<std::string_view> update_rule_names();

}  // namespace cohort
