// SPDX-License-Identifier: Apache-2.0
// Variables with a component for each replica. The comment above a test names the rows of the
// specification.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/internal/context_fixture.h"
#include "cohort/strategy/internal/mirrored_variable.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::throws_error;
using Aggregation = VariableAggregation;

class MirroredVariables : public testing::ContextFixture {
 protected:
  static double id() { return get_replica_context()->replica_id_in_sync_group(); }
  static at::Tensor scalar(double value, at::ScalarType type = at::kDouble) {
    return at::full({}, value, at::TensorOptions(type));
  }
  static double number(const at::Tensor& value) { return value.item<double>(); }
  static std::vector<double> components(const Variable& variable) {
    const auto& mirrored = static_cast<const internal::MirroredVariable&>(*variable.impl());
    std::vector<double> values;
    for (std::size_t i = 0; i < mirrored.size(); ++i)
      values.push_back(number(mirrored.component(i)));
    return values;
  }
  Variable make(double value, Aggregation aggregation = Aggregation::none) {
    return two_.variable("v" + std::to_string(++made_), scalar(value),
                         {.aggregation = aggregation});
  }
  Variable on_read(double value, Aggregation aggregation) {
    return two_.variable(
        "v" + std::to_string(++made_), scalar(value),
        {.synchronization = VariableSynchronization::on_read, .aggregation = aggregation});
  }

  int made_ = 0;
  MirroredStrategy two_{{"CPU:0", "CPU:1"}};
};

// VAR-03, VAR-04
TEST_F(MirroredVariables, AreMadeAsTheOptionsSay) {
  EXPECT_TRUE(make(1).is_trainable());
  EXPECT_FALSE(on_read(1, Aggregation::sum).is_trainable());
  const Variable trained = two_.variable(
      "t", scalar(1), {.is_trainable = true, .synchronization = VariableSynchronization::on_read});
  EXPECT_TRUE(trained.is_trainable());
  EXPECT_THAT(([&] {
                two_.variable("i", at::ones({}, at::kInt),
                              {.is_trainable = false, .aggregation = Aggregation::mean});
              }),
              throws_error(ErrorCode::invalid_argument, "floating-point variable"));
  EXPECT_THAT(
      ([&] { two_.variable("n", scalar(1), {.synchronization = VariableSynchronization::none}); }),
      throws_error(ErrorCode::invalid_argument, "use on_write or on_read"));
  EXPECT_THAT([&] { two_.variable("t", scalar(1)); },
              throws_error(ErrorCode::already_exists, "'t'"));
}

TEST_F(MirroredVariables, ANameIsFreeAfterTheVariablesEnd) {
  { const Variable v = two_.variable("v", scalar(1)); }
  EXPECT_EQ(number(two_.variable("v", scalar(2)).read()), 2);
}

// VAR-06, VAR-13
TEST_F(MirroredVariables, AnAssignmentOutsideOfRunConcernsAllComponents) {
  const Variable v = make(1);
  v.assign(scalar(6));
  EXPECT_THAT(components(v), Each(6));
  v.assign_add(v.tensor().detach());
  EXPECT_THAT(components(v), Each(12)) << "a view of a component is read before it changes";
  const StrategyScope scope = two_.scope();
  v.assign_sub(scalar(2));
  EXPECT_THAT(components(v), Each(10));
  EXPECT_EQ(number(v.read()), 10);
}

// VAR-16
TEST_F(MirroredVariables, WithoutAnAggregationAReplicaWritesItsOwnComponent) {
  const Variable v = make(1);
  const auto read = two_.run([&] {
    v.assign_add(scalar(id()));
    return number(v.tensor());
  });
  EXPECT_THAT(read.local_results(), ElementsAre(1, 2));
  EXPECT_EQ(number(v.read()), 1);
}

// VAR-10 to VAR-12, VAR-15
TEST_F(MirroredVariables, AnAggregationCombinesTheReplicasValues) {
  const Variable sum = make(1, Aggregation::sum), mean = make(1, Aggregation::mean);
  const Variable first = make(3, Aggregation::only_first_replica);
  two_.run([&] {
    sum.assign_add(scalar(id() + 1));
    mean.assign_sub(scalar(id()));
    first.assign_add(scalar(7 * (id() + 1)));
    EXPECT_EQ(number(sum.tensor()), 4) << "the replica sees the result";
  });
  EXPECT_THAT(components(sum), Each(4));
  EXPECT_THAT(components(mean), Each(0.5));
  EXPECT_THAT(components(first), Each(10));
}

// VAR-09, VAR-11
TEST_F(MirroredVariables, OneTensorOfAllReplicasHasAMeanAndNoSum) {
  const Variable sum = make(1, Aggregation::sum), mean = make(1, Aggregation::mean);
  const at::Tensor five = scalar(5), zero = scalar(0);
  two_.run([&] { mean.assign_add(five); });
  EXPECT_THAT(components(mean), Each(6));
  EXPECT_THAT([&] { two_.run([&] { sum.assign(five); }); },
              throws_error(ErrorCode::invalid_argument, "the same in all"));
  EXPECT_THAT(components(sum), Each(1));
  two_.run([&] { sum.assign(zero); });
  EXPECT_THAT(components(sum), Each(0));
}

TEST_F(MirroredVariables, ReplicasThatAssignToDifferentVariablesAreRefused) {
  const Variable a = make(1, Aggregation::sum), b = make(1, Aggregation::sum);
  EXPECT_THAT(([&] { two_.run([&] { (id() == 0 ? a : b).assign(scalar(id())); }); }),
              throws_error(ErrorCode::invalid_argument, "the same assignment"));
  EXPECT_THAT(components(a), Each(1));
}

// VAR-28
TEST_F(MirroredVariables, OnReadIsCombinedByAReadOutsideOfRun) {
  const Variable sum = on_read(0, Aggregation::sum), mean = on_read(0, Aggregation::mean);
  const Variable first = on_read(0, Aggregation::only_first_replica);
  const Variable none = on_read(0, Aggregation::none);
  two_.run([&] {
    for (const Variable& v : {sum, mean, first, none}) {
      v.assign(scalar(id() + 1));
      EXPECT_EQ(number(v.read()), id() + 1);
    }
  });
  EXPECT_EQ(number(sum.read()), 3);
  EXPECT_EQ(number(mean.read()), 1.5);
  EXPECT_EQ(number(first.read()), 1);
  EXPECT_THAT([&] { none.read(); }, throws_error(ErrorCode::invalid_argument, "an aggregation"));
}

TEST_F(MirroredVariables, OnReadIsAssignedOutsideOfRunSoThatItReadsAsAssigned) {
  const Variable sum = on_read(0, Aggregation::sum), mean = on_read(0, Aggregation::mean);
  sum.assign(scalar(7));
  mean.assign(scalar(7));
  mean.assign_add(scalar(1));
  EXPECT_THAT(components(sum), Each(3.5));
  EXPECT_THAT(components(mean), Each(8));
  EXPECT_THAT([&] { sum.assign_add(scalar(1)); },
              throws_error(ErrorCode::invalid_argument, "the sum of its replicas"));
  const Variable whole = two_.variable(
      "whole", at::zeros({}, at::kLong),
      {.synchronization = VariableSynchronization::on_read, .aggregation = Aggregation::sum});
  whole.assign(scalar(7, at::kLong));
  EXPECT_THAT(components(whole), ElementsAre(4, 3)) << "the first replica gets the remainder";
  EXPECT_EQ(number(whole.read()), 7);
}

TEST_F(MirroredVariables, MadeInsideRunAreOneForAllReplicas) {
  const auto made = two_.run([&] { return two_.variable("inside", scalar(5 + id())); });
  EXPECT_EQ(made[0], made[1]);
  EXPECT_THAT(components(made[0]), Each(5)) << "the first replica's initial value";
  // RUN-19
  EXPECT_THAT(([&] { two_.run([&] { two_.variable(id() == 0 ? "foo" : "bar", scalar(1)); }); }),
              throws_error(ErrorCode::failed_precondition, "got 'foo' in replica 0 and 'bar'"));
}

TEST_F(MirroredVariables, OfAnotherStrategyAreRefused) {
  MirroredStrategy other({"CPU:0", "CPU:1"});
  const Variable v = make(1);
  EXPECT_THAT([&] { other.run([&] { v.assign(scalar(1)); }); },
              throws_error(ErrorCode::failed_precondition, "mixing strategies"));
  const StrategyScope scope = other.scope();
  EXPECT_THAT([&] { v.assign(scalar(1)); },
              throws_error(ErrorCode::failed_precondition, "mixing strategies"));
}

TEST_F(MirroredVariables, MinimizeSumsTheGradientsOfAllReplicas) {
  const Variable w = make(1);
  const SGD sgd({w}, {.learning_rate = 0.5});
  const PerReplica<at::Tensor> x({scalar(1), scalar(3)});
  for (int step = 0; step < 2; ++step)
    two_.run([&](const at::Tensor& one) { sgd.minimize(w.tensor() * one); }, x);
  EXPECT_THAT(components(w), Each(1 - 2 * 0.5 * 4));
  EXPECT_EQ(sgd.iterations(), 2) << "the replicas make one update together";
}

TEST_F(MirroredVariables, AVariableThatOneReplicaDoesNotUseCountsAsZeroThere) {
  const Variable a = make(1), b = make(1), c = make(1);
  const SGD sgd({a, b, c}, {.learning_rate = 1});
  two_.run([&] {
    at::Tensor loss = a.tensor() * 2;
    if (id() == 1) loss = loss + b.tensor() * 3;
    sgd.minimize(loss);
  });
  EXPECT_THAT(components(a), Each(1 - 4));
  EXPECT_THAT(components(b), Each(1 - 3));
  EXPECT_THAT(components(c), Each(1));
}

TEST_F(MirroredVariables, MinimizeInSomeReplicasOnlyIsRefusedAndChangesNothing) {
  const Variable w = make(1);
  const SGD sgd({w});
  EXPECT_THAT(([&] {
                two_.run([&] {
                  if (id() == 1) sgd.minimize(w.tensor() * 2);
                });
              }),
              throws_error(ErrorCode::failed_precondition, "the same number of merge_call()s"));
  EXPECT_THAT(components(w), Each(1));
}

TEST_F(MirroredVariables, AnUpdateOutsideOfRunConcernsAllComponents) {
  const Variable w = make(1);
  const SGD sgd({w}, {.learning_rate = 0.5, .momentum = 0.9});
  for (int i = 0; i < 2; ++i) sgd.apply_gradients({{scalar(1), w}});
  EXPECT_EQ(components(w)[0], components(w)[1]);
  EXPECT_LT(components(w)[0], 0);
}

TEST_F(MirroredVariables, OfOneDeviceArePlain) {
  OneDeviceStrategy one("CPU:0");
  const Variable v = one.variable("v", scalar(1), {.aggregation = Aggregation::sum});
  const SGD sgd({v}, {.learning_rate = 0.5});
  one.run([&] {
    v.assign_add(scalar(1));
    sgd.minimize(v.tensor() * 2);
  });
  EXPECT_EQ(number(v.read()), 1);
}

}  // namespace
}  // namespace cohort
