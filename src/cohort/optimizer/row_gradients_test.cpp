// SPDX-License-Identifier: Apache-2.0
// Every optimizer with the sparse gradients of embeddings.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "cohort/optimizer/optimizers.h"
#include "cohort/testing/warnings.h"

namespace cohort {
namespace {

struct Kind {
  std::string name;
  std::function<Optimizer(const Variable&, bool lazy_rows)> make;
  bool changes_all_rows = true;
};

std::vector<Kind> kinds() {
  return {
      {"sgd",
       [](const Variable& v, bool lazy) {
         return SGD({v}, {.learning_rate = 0.1, .lazy_rows = lazy});
       },
       false},
      {"sgd_decay",
       [](const Variable& v, bool lazy) {
         return SGD({v}, {.learning_rate = 0.1, .weight_decay = 0.1, .lazy_rows = lazy});
       }},
      {"momentum",
       [](const Variable& v, bool lazy) {
         return SGD({v}, {.learning_rate = 0.1, .momentum = 0.9, .lazy_rows = lazy});
       }},
      {"dampened",
       [](const Variable& v, bool lazy) {
         return SGD({v},
                    {.learning_rate = 0.1, .momentum = 0.9, .dampening = 0.5, .lazy_rows = lazy});
       }},
      {"adagrad",
       [](const Variable& v, bool lazy) {
         return Adagrad({v}, {.learning_rate = 0.1, .lr_decay = 0.1, .lazy_rows = lazy});
       },
       false},
      {"adagrad_without_eps",
       [](const Variable& v, bool lazy) {
         return Adagrad(
             {v},
             {.learning_rate = 0.1, .initial_accumulator = 0.1, .eps = 0.0, .lazy_rows = lazy});
       }},
      {"tensorflow_adagrad",
       [](const Variable& v, bool lazy) {
         return Adagrad(
             {v},
             {.learning_rate = 0.1, .formula = OptimizerFormula::tensorflow, .lazy_rows = lazy});
       },
       false},
      {"rmsprop",
       [](const Variable& v, bool lazy) {
         return RMSprop(
             {v}, {.learning_rate = 0.1, .momentum = 0.5, .centered = true, .lazy_rows = lazy});
       }},
      {"adam",
       [](const Variable& v, bool lazy) {
         return Adam({v}, {.learning_rate = 0.1, .amsgrad = true, .lazy_rows = lazy});
       }},
      {"adamw", [](const Variable& v,
                   bool lazy) { return AdamW({v}, {.learning_rate = 0.1, .lazy_rows = lazy}); }},
  };
}

class RowGradientsOf : public ::testing::TestWithParam<Kind> {
 protected:
  static constexpr std::int64_t kRows = 11;

  // A table after some steps. `factor`: of each step, what its rows are multiplied by.
  struct Step {
    at::Tensor ids;
    at::Tensor factors;
  };
  std::vector<Step> steps() {
    std::vector<Step> steps;
    for (const std::int64_t count : {3, 1, 8, 5, 2}) {
      steps.push_back({at::randint(0, kRows - 2, {count}, generator_, at::TensorOptions(at::kLong)),
                       at::randn({count, 4}, generator_)});
    }
    return steps;
  }
  static void minimize(const Optimizer& optimizer, const Variable& table, const Step& step,
                       bool is_sparse) {
    const at::Tensor rows = at::embedding(table.tensor(), step.ids, -1, false, is_sparse);
    optimizer.minimize((rows * step.factors).square().sum());
  }
  Variable table() { return local_variable("table", start_.clone().requires_grad_()); }

  at::Generator generator_ = at::detail::createCPUGenerator(5);
  const at::Tensor start_ = at::randn({kRows, 4}, generator_);
};

TEST_P(RowGradientsOf, GiveTheBitsOfDenseOnes) {
  const Variable of_rows = table(), dense = table();
  const Optimizer sparse = GetParam().make(of_rows, false), plain = GetParam().make(dense, false);
  testing::Warnings warnings;
  for (const Step& step : steps()) {
    minimize(sparse, of_rows, step, true);
    minimize(plain, dense, step, false);
    EXPECT_TRUE(at::equal(of_rows.read(), dense.read()));
  }
  EXPECT_EQ(warnings.count(".lazy_rows = true"), GetParam().changes_all_rows ? 1 : 0);
}

// A lazy update is the dense one of a table that has only these rows.
TEST_P(RowGradientsOf, LazyOnesChangeTheRowsThatOccurAlone) {
  const Variable whole = table();
  const at::Tensor used = at::tensor({2, 5, 7}, at::kLong);
  const Variable part = local_variable("part", start_.index_select(0, used).requires_grad_());
  const Optimizer lazy = GetParam().make(whole, true), plain = GetParam().make(part, false);
  testing::Warnings warnings;
  for (int i = 0; i < 4; ++i) {
    const at::Tensor factors = at::randn({3, 4}, generator_);
    minimize(lazy, whole, {used, factors}, true);
    minimize(plain, part, {at::tensor({0, 1, 2}, at::kLong), factors}, false);
  }
  EXPECT_TRUE(at::equal(whole.read().index_select(0, used), part.read()));
  const at::Tensor others = at::tensor({0, 1, 3, 4, 6, 8, 9, 10}, at::kLong);
  EXPECT_TRUE(at::equal(whole.read().index_select(0, others), start_.index_select(0, others)));
  EXPECT_EQ(warnings.text(), "");
}

INSTANTIATE_TEST_SUITE_P(Kinds, RowGradientsOf, ::testing::ValuesIn(kinds()),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace cohort
