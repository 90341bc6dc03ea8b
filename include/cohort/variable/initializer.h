// SPDX-License-Identifier: Apache-2.0
// Initial values of variables (tf.keras.initializers). A value depends only on the seed, the
// variable's name and the element's index. It does not depend on the order in which variables are
// created, nor on the task that computes it.
//
//   const auto kernel = strategy.variable("dense/kernel", {at::kFloat, {{10, 784}}},
//                                         Initializer::glorot_uniform());
//   const auto whole = Initializer::random_normal(0, 0.05).make(spec, "embedding", 7);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "cohort/core/export.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/variable/variable.h"

namespace cohort {

struct InitializerRecipe;  // variable/initializer_recipe.h

// Rows of the first dimension: from `begin` up to, not including, `end`.
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// A value type. Thread-safe. Random values are computed in double precision and rounded, so values
// of two dtypes agree up to rounding. The random initializers take only floating-point dtypes.
class COHORT_API Initializer {
 public:
  static Initializer zeros();
  static Initializer ones();
  // For an integer dtype `value` must be a whole number in its range.
  static Initializer constant(double value);
  // In [min, max); rounding to a small dtype may give max. Throws invalid_argument unless min <=
  // max and max - min is finite.
  static Initializer random_uniform(double min, double max);
  // Throws invalid_argument if one is not finite or stddev < 0.
  static Initializer random_normal(double mean, double stddev);
  // Uniform in [-x, x) with x = sqrt(6 / (fan in + fan out)). The variable has LibTorch's sizes, at
  // least two: [out, in, kernel…].
  static Initializer glorot_uniform();
  // The values that `fn` returns, of the dtype of the spec: the rows that it is asked for, or all
  // of them. A strategy that divides the variable calls it once for each shard, in order, so that
  // the whole need not exist; else it is called once, for all rows, and {0, 0} if there are none.
  // It runs on the thread that makes the variable. make() throws invalid_argument for a result of
  // another spec; what `fn` throws passes.
  using Function = std::function<at::Tensor(const TensorSpec& whole, RowRange rows)>;
  static Initializer function(Function fn);

  // The initial value of variable `name`, a dense tensor on the CPU. Throws invalid_argument if the
  // spec has unknown sizes, or if this initializer cannot fill it.
  at::Tensor make(const TensorSpec& spec, std::string_view name, std::uint64_t seed) const;
  // These rows of make()'s result, for a variable whose rows are on several tasks. Throws
  // invalid_argument if `spec` does not have these rows.
  at::Tensor make_rows(const TensorSpec& spec, RowRange rows, std::string_view name,
                       std::uint64_t seed) const;

 private:
  friend struct InitializerRecipe;
  enum class Kind : std::uint8_t { constant, uniform, normal, glorot, function };
  Initializer(Kind kind, double first, double second)
      : kind_(kind), first_(first), second_(second) {}
  void check_spec(const TensorSpec& spec, std::string_view name) const;
  void fill_by_function(at::Tensor& values, const TensorSpec& whole,
                        std::int64_t first_index) const;
  void fill(at::Tensor& values, const TensorSpec& whole, std::int64_t first_index,
            std::span<const std::int64_t> keys, std::uint64_t key) const;

  Kind kind_;
  double first_;   // the constant, the minimum or the mean
  double second_;  // the maximum or the standard deviation
  std::shared_ptr<const Function> function_ = {};
};

// A variable in this process, with its optimizers' slots. Throws as Initializer::make() does, and
// invalid_argument if a trainable variable has a dtype that is not floating-point.
COHORT_API Variable local_variable(std::string name, const TensorSpec& spec,
                                   const Initializer& initializer, std::uint64_t seed,
                                   bool is_trainable = true);

}  // namespace cohort
