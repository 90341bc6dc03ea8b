// SPDX-License-Identifier: Apache-2.0
// Optimizers compute gradients by autograd, and apply an update rule to each variable, on the task
// that stores it.
//
//   cohort::Adam optimizer(model.parameters(), {.learning_rate = 1e-3});
//   optimizer.minimize(loss);      // inside a step
// Formulas, defaults and names of slots are those of torch::optim (optimizers.h).
//
// Hyperparameters are float64, also when they are sent. A rule rounds them to the variable's dtype,
// for example to float32, after the calculations that use only hyperparameters (Adam's bias
// correction, AdamW's 1 - lr*weight_decay).
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
#include "cohort/variable/update_rule.h"
#include "cohort/variable/variable.h"

namespace cohort {

// A shared handle; copies are the same optimizer. Its slots are stored with the variables and found
// by its name (tf.keras.optimizers.Optimizer.name). The options may give the name; otherwise it is
// the rule's name with a number, "adam", "adam_1", …, in the order in which this process makes
// them. So a new optimizer begins with new slots, unless an earlier optimizer of these variables
// had the same name: then it continues with those. Throws already_exists if another optimizer of
// this name over one of the variables still exists, and, at the first update, if the slots of this
// name belong to another rule. Thread-safe: steps may run and be scheduled while a different thread
// sets a hyperparameter.
class COHORT_API Optimizer {
 public:
  // Computes the gradients of a scalar `loss` and applies them to every trainable variable; a
  // variable without a gradient stays unchanged. Throws invalid_argument if loss is not a
  // floating-point scalar or depends on none of the variables (in no replica, outside of a traced
  // step). Gradients that an earlier backward() has left in grad() do not count: add up the losses.
  // Hooks that are registered on a variable's tensor() change its gradient as in backward(), here
  // and in compute_gradients(): in each replica, before the gradients of all are added.
  //
  // In a replica context of several replicas, the gradients are summed over the replicas first, so
  // scale the loss by the size of the global batch (average_loss()). All replicas must make the
  // same calls. A variable that has a gradient in some replicas only counts as zero in the others.
  // Throws unimplemented there for variables that the strategy has not made. With several workers,
  // it is called only there: elsewhere it throws failed_precondition, since a worker knows the
  // gradient of its own losses alone.
  void minimize(const at::Tensor& loss) const;
  // The first half of minimize(), so that you can change gradients before they are applied (tf's
  // compute_gradients): a pair of gradient and variable for each trainable variable. The gradient
  // is undefined if loss does not depend on the variable. In a replica it is that of the replica's
  // own loss. In cross-replica context, for example after run(), the loss may depend on the
  // components of all replicas, such as a sum of what they returned; the gradient is with respect
  // to all of them.
  std::vector<std::pair<at::Tensor, Variable>> compute_gradients(const at::Tensor& loss) const;
  // The second half of minimize(); skips undefined gradients. All gradients are read before the
  // first variable changes, so a gradient may be a view of another variable's value. Throws
  // unimplemented as minimize() does.
  //
  // A sparse gradient of rows, as an embedding makes it with sparse(true), gives the bits of the
  // dense one, if the step uses the embedding once: LibTorch itself adds the rows of several uses
  // in another order. Rows that come several times are added in their order, and rules with
  // momentum, averages or weight decay change rows without a gradient, too, as in TensorFlow. Such
  // rules cost an update of all rows, and a line in the log; the others, and all with .lazy_rows,
  // cost the rows that occur.
  //
  // An update of variables on several parameter servers is not atomic. If one server refuses its
  // part, for example because another rule's slots have this optimizer's name, the error is thrown
  // although the other servers have applied their parts
  // (docs/decisions/0045-a-home-keeps-a-group-of-variables.md).
  void apply_gradients(const std::vector<std::pair<at::Tensor, Variable>>& gradients) const;

  // The learning rate of the next update.
  double learning_rate() const { return hyperparameter("learning_rate"); }
  // Takes a number or a schedule. It applies from the next scheduled step on, or in an epoch from
  // the next step that is sent to a worker, without a new trace. Throws invalid_argument if its
  // value at iterations() is negative or not finite.
  void set_learning_rate(const LearningRateSchedule& learning_rate);
  // How many updates have a number (tf.keras.optimizers.Optimizer.iterations): 0, 1, …, at which a
  // schedule is evaluated. An apply_gradients() that runs in this process is counted when it is
  // done. A step on parameter servers gets its number before it runs: in schedule(), or in an epoch
  // when it is sent to its worker. It counts once for each apply_gradients() in it, even if it is
  // retried or fails. So step i has the same rate for any number of closures in flight, and
  // set_iterations() before the first step resumes a training.
  //
  // If a step is cancelled before it runs, its number becomes free. The next updates take the free
  // numbers, the lowest first, and learning_rate() is the rate of the lowest. So if later steps
  // have numbers by then, iterations() is not the number of the next update. After
  // set_iterations(n) no number is free, and the next update takes number n. Both calls throw
  // failed_precondition inside a traced step; set_iterations() throws invalid_argument for a
  // negative number.
  std::int64_t iterations() const;
  void set_iterations(std::int64_t iterations);
  // A hyperparameter of the rule, by its name. Throws not_found, with the list of names, if there
  // is none. set_hyperparameter() accepts the same range as the constructor; for "learning_rate" it
  // replaces a schedule. Both throw failed_precondition inside a traced step: set the number
  // between two calls of the step, or pass it to the step as an argument.
  double hyperparameter(std::string_view name) const;
  void set_hyperparameter(std::string_view name, double value);
  const std::vector<Variable>& variables() const;
  const std::string& name() const;
  const variable::UpdateRule& rule() const;

 protected:
  // `hyper` has the hyperparameters after the learning rate, in the rule's order. Throws
  // invalid_argument if one is out of range.
  struct OptimizerTraits {
    std::string name;  // may be empty
    bool lazy_rows = false;
  };
  Optimizer(std::vector<Variable> variables, const variable::UpdateRule& rule,
            const LearningRateSchedule& learning_rate, const std::vector<double>& hyper,
            const OptimizerTraits& traits);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Gradient clipping that uses only tensor operators, so that it can be part of a traced step
// (torch::nn::utils::clip_grad_norm_ reads the norm on the host).
//
//   auto gradients = optimizer.compute_gradients(loss);
//   optimizer.apply_gradients(cohort::clip_by_global_norm(gradients, 1.0));
//
// Each gradient g becomes g * max_norm / max(global_norm, max_norm), where global_norm is the norm
// of all gradients together, a 0-dim tensor (tf.clip_by_global_norm). Undefined gradients stay
// undefined, and sparse ones sparse; if the norm is not finite, the result is NaN. In a replica,
// these are the replica's own gradients, whose sum may be larger: clip pairs there.
struct ClippedGradients {
  std::vector<at::Tensor> gradients;
  at::Tensor global_norm;
};
COHORT_API ClippedGradients clip_by_global_norm(const std::vector<at::Tensor>& gradients,
                                                double max_norm);

// The same for the result of compute_gradients(). In a replica context of several replicas, the
// gradients of all are added first, and the norm is that of the sums, as with one device: all
// replicas must make this call. Each gets its share of the result, since apply_gradients() adds
// them up. Throws unimplemented there inside a traced function.
COHORT_API std::vector<std::pair<at::Tensor, Variable>> clip_by_global_norm(
    std::vector<std::pair<at::Tensor, Variable>> gradients, double max_norm);

namespace optimizer {
// Returns the rule "sgd", "momentum", "nesterov", "dampened_momentum", "adagrad", "rmsprop",
// "adam", "adamw", a variant that has other slots ("rmsprop_centered", "adam_amsgrad", …), or one
// with TensorFlow's formula ("tensorflow_adam", …). Throws not_found, with the list, for any other
// name.
COHORT_API const variable::UpdateRule& update_rule_of(std::string_view name);
COHORT_API std::vector<std::string_view> update_rule_names();
}  // namespace optimizer

}  // namespace cohort
