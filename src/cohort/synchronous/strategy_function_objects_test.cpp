// SPDX-License-Identifier: Apache-2.0
// Tensors that a step of strategy.function() and code outside of it both have: arguments, captured
// ones, and those of variables.
#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "cohort/synchronous/mirrored/variable_fixture.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using testing::throws_error;
using StrategyFunctionObjects = testing::TwoReplicas<MirroredStrategy>;

// Regression: a replica changed the argument while another one read it.
TEST_F(StrategyFunctionObjects, RefusesArgumentsOfTheMemoryThatItChanges) {
  const Variable v = make(3, Aggregation::mean), other = make(4);
  const auto step = two_.function([&](const at::Tensor& x) { v.assign_add(x); });
  const auto of_replica = [](const Variable& variable, int i) {
    return internal::component_variables(variable)[static_cast<std::size_t>(i)].tensor();
  };
  const PerReplica<at::Tensor> own({of_replica(v, 0), of_replica(v, 1)});
  EXPECT_THAT([&] { step(own); }, throws_error(ErrorCode::invalid_argument,
                                               "got the tensor of variable '" + v.name() +
                                                   "', which the step changes, as argument 0"));
  const auto nested = two_.function([&](const Nest& x) { v.assign_add(x.items()[1].tensor()); });
  EXPECT_THAT(
      [&] {
        nested(Nest::list({scalar(1), of_replica(v, 1).detach()}));
      },
      throws_error(ErrorCode::invalid_argument, "pass clone() of it"));
  EXPECT_EQ(number(v.read()), 3);
  step(PerReplica<at::Tensor>({of_replica(other, 0), of_replica(other, 1)}));
  EXPECT_EQ(number(v.read()), 7);
}

// Regression: it was the transposed argument itself.
TEST_F(StrategyFunctionObjects, ARowMajorCopyOfAnArgumentIsNotTheArgument) {
  const at::Tensor x = at::ones({2, 3}).t();
  const auto step = two_.function([](const at::Tensor& each) { return each.contiguous(); });
  const PerReplica<at::Tensor> result = step(x);
  ASSERT_TRUE(result.is_wrapped());
  EXPECT_TRUE(result[0].is_contiguous());
  EXPECT_FALSE(result[0].is_alias_of(x));
  const Variable v = two_.variable("sum", at::zeros({3, 2}), {.aggregation = Aggregation::sum});
  two_.function([&](const at::Tensor& each) { v.assign_add(each.contiguous()); })(x);
  EXPECT_EQ(number(v.read().sum()), 12);
}

// Regression: the programs that were traced again for other sizes kept the old values.
TEST_F(StrategyFunctionObjects, FollowsWhatItCapturesForSizesOfAllReplicas) {
  std::vector<at::Tensor> table;
  for (int i = 0; i < 8; ++i) table.push_back(row({double(i), 1}));
  const auto step = two_.function([&](const at::Tensor& x) {
    const at::Tensor all = get_replica_context()->all_gather(x, 0);
    return table.at(static_cast<std::size_t>(all.size(0))).sum() * all.sum();
  });
  const PerReplica<at::Tensor> x({row({1, 1, 1}), row({1, 1})});
  EXPECT_THAT(numbers_of(step(x)), ElementsAre(30, 30));
  table[5].fill_(7);
  EXPECT_THAT(numbers_of(step(x)), ElementsAre(70, 70));
  EXPECT_THAT(numbers_of(step(x)), ElementsAre(70, 70));
}

// Regression: replica 1 took the tensor for a constant.
TEST_F(StrategyFunctionObjects, RefusesTheTensorOfAnotherReplica) {
  const Variable v = make(3);
  const Variable count =
      two_.variable("count", scalar(1), {.is_trainable = false, .aggregation = Aggregation::sum});
  for (const Variable& variable : {v, count}) {
    const at::Tensor outside = variable.tensor();
    EXPECT_THAT([&] { two_.function([&](const at::Tensor& x) { return outside * x; })(scalar(2)); },
                throws_error(ErrorCode::invalid_argument, "call it inside"));
  }
}

// Regression: autograd did not learn of what a step wrote before it failed.
TEST_F(StrategyFunctionObjects, TellsAutogradWhatAFailedStepHasWritten) {
  const Variable v = make(3);
  const auto graphs = two_.run([&] { return v.tensor() * v.tensor(); });
  const auto step = two_.function([&](const at::Tensor& x, const at::Tensor& at) {
    v.assign(x);
    return at::ones({2}).index_select(0, at);
  });
  step(scalar(3), index({0}));
  const auto newer = two_.run([&] { return v.tensor() * v.tensor(); });
  EXPECT_ANY_THROW(graphs[0].backward());
  EXPECT_THAT([&] { step(scalar(4), index({7})); },
              throws_error(ErrorCode::invalid_argument, "index out of range"));
  EXPECT_ANY_THROW(newer[0].backward());
}

}  // namespace
}  // namespace cohort
