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
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/optimizer/learning_rate_schedule.h"
#include "cohort/variable/update_rule.h"
#include "cohort/variable/variable.h"

namespace cohort {

// Variables of one optimizer that have another learning rate or weight decay than the rest (the
// parameter groups of torch::optim, which name tensors and not patterns):
//
//   cohort::AdamW adamw(model.parameters(),
//                       {.learning_rate = 1e-3,
//                        .groups = {{.pattern = "*.bias", .weight_decay = 0},
//                                   {.pattern = "model/encoder/*", .learning_rate_factor = 0.1}}});
//
// A value type.
struct ParameterGroup {
  // It is compared with the whole name of each variable: '*' stands for any number of characters,
  // also of '/', '?' for one, and [ab] for one of these. A variable belongs to the first group of
  // the list whose pattern fits it. Required; a pattern that fits no variable is an error.
  std::string pattern = {};
  // In place of the optimizer's, by the same number of updates. Unset: the optimizer's.
  std::optional<LearningRateSchedule> learning_rate = {};
  // Times the optimizer's learning rate, also after set_learning_rate(). >= 0; 1 beside a
  // learning_rate of its own.
  double learning_rate_factor = 1.0;
  // In place of the optimizer's; its range and meaning are those of the option of that name.
  std::optional<double> weight_decay = {};
};

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
  // The number that counts for a variable, which has that of its group (ParameterGroup); the others
  // are those of the rest, also in set_hyperparameter(). Throws invalid_argument for a variable of
  // another optimizer, and as above.
  double hyperparameter(std::string_view name, const Variable& variable) const;
  void set_hyperparameter(std::string_view name, double value);
  const std::vector<Variable>& variables() const;
  const std::string& name() const;
  const variable::UpdateRule& rule() const;

 protected:
  // `hyper` has the hyperparameters after the learning rate, in the rule's order. Throws
  // invalid_argument if one is out of range, and for a group whose pattern fits no variable, or for
  // a weight_decay where the rule has none.
  struct OptimizerTraits {
    std::string name;  // may be empty
    bool lazy_rows = false;
    std::vector<ParameterGroup> groups = {};
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
//   const auto [clipped, norm] =
//       cohort::clip_by_global_norm(optimizer.compute_gradients(loss), 1.0);
//   optimizer.apply_gradients(clipped);  // `norm` is for a log: it is equal in all replicas
//
// Each gradient g becomes g * max_norm / max(global_norm, max_norm), where global_norm is the norm
// of all gradients together before they are clipped, a 0-dim tensor. So are tf.clip_by_global_norm
// and what it returns; torch's clip_grad_norm_ returns this norm, too, but divides by it plus 1e-6.
// Undefined gradients stay undefined and are no part of the norm, and sparse ones stay sparse: a
// row that occurs several times counts once, as the sum. Squares of float16 and bfloat16 are added
// as float32. If the norm is not finite, all gradients become NaN. Throws invalid_argument unless
// max_norm is finite and > 0. In a replica, these are the replica's own gradients, whose sum may be
// larger: clip pairs there. Thread-safe.
struct ClippedGradients {
  std::vector<at::Tensor> gradients;
  at::Tensor global_norm;
};
COHORT_API ClippedGradients clip_by_global_norm(const std::vector<at::Tensor>& gradients,
                                                double max_norm);

// The same for the result of compute_gradients(). In a replica context of several replicas, the
// gradients of all are added first, and the norm is that of the sums, as with one device: all
// replicas, on all workers, must make this call, and get the same norm. Each gets its share of the
// clipped gradients, since apply_gradients() adds them up.
//
// In a step of Strategy::function(), a variable has a gradient in all replicas or in none, else it
// throws invalid_argument; and sparse gradients are added as dense ones, so that the last digits of
// their norm may differ from those of run().
struct ClippedPairs {
  std::vector<std::pair<at::Tensor, Variable>> gradients;
  at::Tensor global_norm;
};
COHORT_API ClippedPairs clip_by_global_norm(std::vector<std::pair<at::Tensor, Variable>> gradients,
                                            double max_norm);

namespace optimizer {
// Returns the rule "sgd", "momentum", "nesterov", "dampened_momentum", "adagrad", "rmsprop",
// "adam", "adamw", a variant that has other slots ("rmsprop_centered", "adam_amsgrad", …), or one
// with TensorFlow's formula ("tensorflow_adam", …). Throws not_found, with the list, for any other
// name.
COHORT_API const variable::UpdateRule& update_rule_of(std::string_view name);
COHORT_API std::vector<std::string_view> update_rule_names();
}  // namespace optimizer

}  // namespace cohort
