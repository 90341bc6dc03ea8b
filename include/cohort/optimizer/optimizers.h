// SPDX-License-Identifier: Apache-2.0
// The kinds of optimizers: SGD with momentum, RMSprop, Adagrad, Adam and AdamW.
//
// Options, defaults, formulas and the order of operations are those of torch::optim. On the CPU
// every product, sum, quotient and root is rounded by itself. So are they in LibTorch's kernels
// without fused multiply-add (ATEN_CPU_CAPABILITY=default), and the results have the same bits.
// LibTorch's kernels for AVX2 and AVX-512 round a product and its sum once, so their results differ
// in the last bits: in the addition of weight_decay, in momentum and averages, and in the last
// addition of SGD. (LibTorch built with MKL may round square roots differently, too.) Here the bits
// are those of all processors, so copies of a variable on several hosts stay equal. On a GPU the
// operators are those that torch::optim calls, with their bits.
//
// Numbers below the least normal one (1.2e-38 in float32) are zero in an update on x86. An eps
// below 1e-19 (float32; float64: 1e-154) lets this be seen: the square of a gradient as small is 0
// here. With eps = 0 a gradient of 0 gives NaN, as in torch::optim.
//
// The option lr of torch::optim is called learning_rate, and may be a schedule. torch::optim's
// lists of parameter groups are the option `groups` here (ParameterGroup), for another learning
// rate or weight decay; other options need another optimizer.
//
// With lazy_rows, a sparse gradient (of an embedding with sparse(true)) changes only the rows that
// occur in it, with their rows of the slots, as torch::optim::SparseAdam and TensorFlow's LazyAdam
// do. Without it, the numbers are those of the dense gradient (Optimizer::apply_gradients()).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/optimizer/learning_rate_schedule.h"
#include "cohort/optimizer/optimizer.h"

namespace cohort {

// The library whose formulas and defaults an optimizer has. SGD has one formula, which is that of
// both.
enum class OptimizerFormula : std::uint8_t {
  torch,      // torch::optim
  tensorflow  // tf.compat.v1.train and tf.keras.optimizers
};

struct SGDOptions {
  LearningRateSchedule learning_rate = 0.01;  // a number or a schedule; torch::optim has no default
  double momentum = 0.0;                      // in [0, 1); 0: plain SGD, without a slot
  // >= 0: 1 - dampening of each gradient enters the buffer, except of the first one, which enters
  // it whole. Excludes nesterov; without momentum it has no effect.
  double dampening = 0.0;
  bool nesterov = false;  // requires momentum > 0
  // >= 0. Coupled: g + weight_decay * p replaces g. Without momentum this equals the decoupled
  // decay of tf.keras.optimizers.SGD; with momentum the decay accumulates here.
  double weight_decay = 0.0;
  bool lazy_rows = false;  // of sparse gradients, see above
  std::string name = {};   // finds its slots; empty: one of its own (Optimizer)
  std::vector<ParameterGroup> groups = {};
};

// p -= lr*g; with momentum b = m*b + (1 - dampening)*g, p -= lr*b; with nesterov p -= lr*(g + m*b).
// Slot: momentum_buffer, with dampening also step. tf.compat.v1.train.MomentumOptimizer is the
// same; tf.keras.optimizers.SGD as long as the learning rate does not change (its buffer includes
// lr).
class COHORT_API SGD : public Optimizer {
 public:
  explicit SGD(std::vector<Variable> variables, SGDOptions options = {});
};

// In these options an unset field has the default of the formula.
struct RMSpropOptions {
  // A number or a schedule; 0.01, TensorFlow 0.001.
  std::optional<LearningRateSchedule> learning_rate = {};
  std::optional<double> alpha = {};  // in [0, 1); 0.99, TensorFlow 0.9
  std::optional<double> eps = {};    // >= 0; 1e-8, TensorFlow 1e-10 and > 0
  double weight_decay = 0.0;         // >= 0, coupled
  double momentum = 0.0;             // in [0, 1); 0: none, without a slot
  bool centered = false;             // divides by the standard deviation of the gradients
  OptimizerFormula formula = OptimizerFormula::torch;
  bool lazy_rows = false;  // of sparse gradients, see above
  std::string name = {};   // finds its slots; empty: one of its own (Optimizer)
  std::vector<ParameterGroup> groups = {};
};

// s = alpha*s + (1-alpha)*g*g, p -= lr*g/(sqrt(s) + eps). Centered: c = alpha*c + (1-alpha)*g, and
// s - c*c is under the root. With momentum: b = m*b + g/(sqrt(s) + eps), p -= lr*b. All start at 0.
// Slots: square_avg, grad_avg if centered, momentum_buffer with momentum.
//
// OptimizerFormula::tensorflow: p -= lr*g/sqrt(s + eps), and s starts at 1
// (tf.compat.v1.train.RMSPropOptimizer). Throws unimplemented there for weight_decay, momentum and
// centered.
class COHORT_API RMSprop : public Optimizer {
 public:
  explicit RMSprop(std::vector<Variable> variables, RMSpropOptions options = {});
};

struct AdagradOptions {
  // A number or a schedule; 0.01, TensorFlow 0.001.
  std::optional<LearningRateSchedule> learning_rate = {};
  double lr_decay = 0.0;      // >= 0: update t = 0, 1, … has the rate lr / (1 + t*lr_decay)
  double weight_decay = 0.0;  // >= 0, coupled
  // >= 0, TensorFlow > 0. It is used when a variable gets its first gradient. 0, TensorFlow 0.1.
  std::optional<double> initial_accumulator = {};
  std::optional<double> eps = {};  // >= 0; 1e-10; TensorFlow's formula has none
  OptimizerFormula formula = OptimizerFormula::torch;
  bool lazy_rows = false;  // of sparse gradients, see above
  std::string name = {};   // finds its slots; empty: one of its own (Optimizer)
  std::vector<ParameterGroup> groups = {};
};

// a += g*g, p -= lr*g/(sqrt(a) + eps); a starts at initial_accumulator, which torch::optim calls
// initial_accumulator_value. Slots: sum, step (t of lr_decay, of each variable).
//
// OptimizerFormula::tensorflow: p -= lr*g/sqrt(a) (tf.compat.v1.train.AdagradOptimizer). Throws
// unimplemented there for lr_decay, weight_decay and eps.
class COHORT_API Adagrad : public Optimizer {
 public:
  explicit Adagrad(std::vector<Variable> variables, AdagradOptions options = {});
};

struct AdamOptions {
  LearningRateSchedule learning_rate = 0.001;  // a number or a schedule
  double beta_1 = 0.9;                         // in [0, 1)
  double beta_2 = 0.999;                       // in [0, 1)
  std::optional<double> eps = {};              // >= 0; 1e-8, TensorFlow 1e-7 and > 0
  // >= 0. Coupled: weight_decay * p is added to the gradient, and so enters the averages. For the
  // decoupled weight_decay of tf.keras.optimizers.Adam use AdamW.
  double weight_decay = 0.0;
  bool amsgrad = false;  // divides by the largest average of squares so far
  OptimizerFormula formula = OptimizerFormula::torch;
  bool lazy_rows = false;  // of sparse gradients, see above
  std::string name = {};   // finds its slots; empty: one of its own (Optimizer)
  std::vector<ParameterGroup> groups = {};
};

// m = b1*m + (1-b1)*g, v = b2*v + (1-b2)*g*g,
// p -= lr/(1-b1^t) * m/(sqrt(v)/sqrt(1-b2^t) + eps). t counts the steps of each variable and is
// stored with it. Slots: exp_avg, exp_avg_sq, step, with amsgrad max_exp_avg_sq.
//
// OptimizerFormula::tensorflow: p -= lr*sqrt(1-b2^t)/(1-b1^t) * m/(sqrt(v) + eps), where eps is not
// bias-corrected (tf.keras.optimizers.Adam). Throws unimplemented there for amsgrad.
class COHORT_API Adam : public Optimizer {
 public:
  explicit Adam(std::vector<Variable> variables, AdamOptions options = {});
};

struct AdamWOptions {
  LearningRateSchedule learning_rate = 0.001;  // a number or a schedule
  double beta_1 = 0.9;                         // in [0, 1)
  double beta_2 = 0.999;                       // in [0, 1)
  std::optional<double> eps = {};              // >= 0; 1e-8, TensorFlow 1e-7 and > 0
  std::optional<double> weight_decay = {};     // >= 0; 0.01, TensorFlow 0.004
  bool amsgrad = false;                        // as for Adam
  OptimizerFormula formula = OptimizerFormula::torch;
  bool lazy_rows = false;  // of sparse gradients, see above
  std::string name = {};   // finds its slots; empty: one of its own (Optimizer)
  std::vector<ParameterGroup> groups = {};
};

// Adam with decoupled weight decay: first p *= 1 - lr*weight_decay, then Adam's step with the plain
// gradient, so that the decay does not enter the averages. Slots and formulas are Adam's. The decay
// applies to every variable of the optimizer, also to biases and scales: a group gives these
// weight_decay = 0.
class COHORT_API AdamW : public Optimizer {
 public:
  explicit AdamW(std::vector<Variable> variables, AdamWOptions options = {});
};

}  // namespace cohort
