// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/functions/table_traffic.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/index.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "cohort/optimizer/optimizers.h"
#include "cohort/testing/coordinator_fixture.h"
#include "cohort/testing/warnings.h"

namespace cohort {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kRows = std::int64_t{1} << 20;

class TableTraffic : public testing::CoordinatorFixture {
 protected:
  // The warnings after a step with this body has been scheduled three times.
  std::string warnings_of(const std::function<at::Tensor(const at::Tensor&)>& body) {
    testing::Warnings warnings;
    ClusterCoordinator coordinator(strategy());
    const Function step([&](const at::Tensor& ids) { return body(ids); }, {.name = "look_up"});
    for (int i = 0; i < 3; ++i) coordinator.schedule(step, at::arange(4));
    return warnings.text();
  }
};

TEST_F(TableTraffic, IsNotSaidOfTablesWhoseRowsAreGathered) {
  const Variable table = strategy().variable("users", at::zeros({kRows, 8}));
  SGD sgd({table}, {.learning_rate = 1});
  for (const bool is_sparse : {false, true}) {
    EXPECT_EQ(warnings_of([&](const at::Tensor& ids) {
                const at::Tensor loss =
                    at::embedding(table.tensor(), ids, -1, false, is_sparse).sum();
                sgd.minimize(loss);
                return loss.detach();
              }),
              "");
  }
}

TEST_F(TableTraffic, OfATableThatIsReadAndUpdatedIsSaidOnce) {
  const Variable table = strategy().variable("users", at::zeros({kRows, 3}));
  SGD sgd({table}, {.learning_rate = 1});
  const std::string text = warnings_of([&](const at::Tensor& ids) {
    const at::Tensor loss = at::index(table.tensor(), {ids}).sum();
    sgd.minimize(loss);
    return loss.detach();
  });
  EXPECT_THAT(text, HasSubstr("each call of 'look_up' moves 24 MiB for tables of which it looks up "
                              "rows; it pulls 'users' whole: look rows up by embedding"));
  EXPECT_THAT(text, HasSubstr("; it pushes the gradient of 'users' whole: "));
  EXPECT_EQ(text.find("look_up", text.find("look_up") + 1), std::string::npos) << text;
}

TEST_F(TableTraffic, OfSeveralTablesIsAdded) {
  const Variable users = strategy().variable("users", at::zeros({kRows, 3}));
  const Variable items = strategy().variable("items", at::zeros({kRows, 2}));
  EXPECT_THAT(warnings_of([&](const at::Tensor& ids) {
                return at::index(users.tensor(), {ids}).sum() +
                       at::index(items.tensor(), {ids}).sum();
              }),
              AllOf(HasSubstr("20 MiB"), HasSubstr("'users'"), HasSubstr("'items'")));
}

// Its rows are read alone, but the norm needs the gradient of all.
TEST_F(TableTraffic, OfAGradientThatIsUsedOtherwiseIsSaid) {
  const Variable table = strategy().variable("users", at::zeros({kRows, 8}));
  SGD sgd({table}, {.learning_rate = 1});
  const std::string text = warnings_of([&](const at::Tensor& ids) {
    const at::Tensor loss = at::embedding(table.tensor(), ids).sum();
    const at::Tensor gradient = torch::autograd::grad({loss}, {table.tensor()})[0];
    sgd.apply_gradients({{gradient / gradient.norm(), table}});
    return loss.detach();
  });
  EXPECT_THAT(text, HasSubstr("moves 32 MiB for tables of which it looks up rows; it pushes the "
                              "gradient of 'users' whole: look rows up"));
}

TEST_F(TableTraffic, IsNotSaidOfLessOrOfVariablesThatAreUsedWhole) {
  const Variable small = strategy().variable("small", at::zeros({kRows, 3}));
  const Variable whole = strategy().variable("whole", at::zeros({kRows, 5}));
  EXPECT_EQ(warnings_of([&](const at::Tensor& ids) {
              return at::index(small.tensor(), {ids}).sum() +
                     at::embedding(whole.tensor(), ids).sum() + whole.tensor().sum();
            }),
            "");
}

}  // namespace
}  // namespace cohort
