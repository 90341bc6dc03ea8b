// SPDX-License-Identifier: Apache-2.0
// Variables with a component for each replica. The comment above a test names the rows of the
// specification.
#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "cohort/optimizer/optimizers.h"
#include "cohort/synchronous/mirrored/variable_fixture.h"
#include "cohort/testing/cpu_devices.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::throws_error;

class MirroredVariables : public testing::TwoReplicas<MirroredStrategy> {
 protected:
  Variable on_read(double value, Aggregation aggregation) {
    return two_.variable(
        "v" + std::to_string(++made_), scalar(value),
        {.synchronization = VariableSynchronization::on_read, .aggregation = aggregation});
  }
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

TEST_F(MirroredVariables, TellHowTheyAreReplicated) {
  EXPECT_EQ(make(1).synchronization(), Synchronization::on_write) << "automatic";
  EXPECT_EQ(on_read(1, Aggregation::sum).synchronization(), Synchronization::on_read);
  EXPECT_EQ(make(1, Aggregation::mean).aggregation(), Aggregation::mean);
  OneDeviceStrategy one("CPU:0");
  const Variable plain = one.variable("v", scalar(1), {.aggregation = Aggregation::sum});
  EXPECT_EQ(plain.synchronization(), Synchronization::automatic);
  EXPECT_EQ(plain.aggregation(), Aggregation::sum);
  EXPECT_EQ(local_variable("l", scalar(1)).synchronization(), Synchronization::automatic);
}

// VAR-001, VAR-002: only by a cast from a number.
TEST_F(MirroredVariables, UnknownOptionsAreRefused) {
  OneDeviceStrategy one("CPU:0");
  CentralStorageStrategy central({"CPU:0", "CPU:1"});
  for (Strategy* strategy : std::vector<Strategy*>{&two_, &one, &central}) {
    const auto refused = [&](const VariableOptions& options) {
      EXPECT_THAT([&] { strategy->variable("v", scalar(1), options); },
                  throws_error(ErrorCode::invalid_argument, "got the numbers "));
    };
    refused({.synchronization = static_cast<Synchronization>(7)});
    refused({.aggregation = static_cast<Aggregation>(4)});
  }
  EXPECT_THAT(
      [&] { two_.variable("v", scalar(1), {.colocate_with = local_variable("l", scalar(1))}); },
      throws_error(ErrorCode::invalid_argument, "beside one of the same strategy"));
}

// VAR-071
TEST_F(MirroredVariables, OfIntegersAreNotTrainableUnlessTheOptionsSay) {
  const Variable steps = two_.variable("steps", scalar(0, at::kLong),
                                       {.aggregation = Aggregation::only_first_replica});
  EXPECT_FALSE(steps.is_trainable());
  two_.run([&] { steps.assign_add(1); });
  EXPECT_THAT(components(steps), Each(1));
  EXPECT_THAT(([&] { two_.variable("i", scalar(0, at::kLong), {.is_trainable = true}); }),
              throws_error(ErrorCode::invalid_argument, "set is_trainable to false"));
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

// VAR-09, VAR-11, VAR-17
TEST_F(MirroredVariables, EqualNumbersOfAllReplicasAreOneValue) {
  const Variable sum = make(1, Aggregation::sum), mean = make(1, Aggregation::mean);
  two_.run([&] { mean.assign_add(5); });
  EXPECT_THAT(components(mean), Each(6));
  for (const at::Scalar& number : {at::Scalar(5.0), at::Scalar(5)}) {
    EXPECT_THAT(
        [&] { two_.run([&] { sum.assign(number); }); },
        throws_error(ErrorCode::invalid_argument, "got one number that is the same in all"));
  }
  EXPECT_THAT(components(sum), Each(1));
  two_.run([&] { sum.assign_sub(0); });
  EXPECT_THAT(components(sum), Each(1));
  two_.run([&] { sum.assign(id()); });
  EXPECT_THAT(components(sum), Each(1)) << "0 and 1 are a value of each replica";
  sum.assign(3);
  EXPECT_THAT(components(sum), Each(3));
}

// VAR-084
TEST_F(MirroredVariables, AFractionForIntegersIsRefusedAndChangesNothing) {
  const Variable whole =
      two_.variable("whole", scalar(4, at::kInt), {.aggregation = Aggregation::sum});
  EXPECT_THAT([&] { two_.run([&] { whole.assign(1.5); }); },
              throws_error(ErrorCode::invalid_argument, "got 1.5"));
  two_.run([&] { whole.assign_add(scalar(id() + 1, at::kInt)); });
  EXPECT_THAT(components(whole), Each(7));
}

// Halves are added in float32 and rounded once.
TEST_F(MirroredVariables, SumsOfHalvesAreRoundedOnce) {
  MirroredStrategy three(testing::cpu_devices(3));
  const Variable half =
      three.variable("half", scalar(0, at::kHalf), {.aggregation = Aggregation::sum});
  three.run([&] { half.assign(scalar(id() == 0 ? 2048 : 1, at::kHalf)); });
  EXPECT_EQ(half.read().item<double>(), 2050);
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
  none.assign_add(scalar(1));
  EXPECT_THAT(components(none), ElementsAre(2, 3)) << "it can be written, but not read";
}

// Regression: assign_add() of a sum outside of run() assigned.
TEST_F(MirroredVariables, OnReadOfOneReplicaIsPlain) {
  MirroredStrategy mirrored(testing::cpu_devices(1));
  OneDeviceStrategy one("CPU:0");
  for (Strategy* strategy : std::vector<Strategy*>{&mirrored, &one}) {
    for (const Aggregation aggregation : {Aggregation::sum, Aggregation::none}) {
      const Variable v = strategy->variable(
          "v", scalar(10),
          {.synchronization = Synchronization::on_read, .aggregation = aggregation});
      v.assign_add(5);
      EXPECT_EQ(number(v.read()), 15);
      strategy->run(
          [&] { get_replica_context()->merge_call([&](Strategy&) { v.assign_sub(1); }); });
      EXPECT_EQ(number(v.read()), 14);
      strategy->run([&] { v.assign(3); });
      EXPECT_EQ(number(v.tensor()), 3);
    }
  }
}

// 1.3.11
TEST_F(MirroredVariables, AreNotReadInsideOfAnotherStrategy) {
  MirroredStrategy other({"CPU:0", "CPU:1"});
  const Variable v = make(1);
  const StrategyScope scope = other.scope();
  EXPECT_THAT([&] { v.read(); }, throws_error(ErrorCode::failed_precondition, "mixing strategies"));
}

// It gave every replica of the other strategy the component of replica 0.
TEST_F(MirroredVariables, HaveNoTensorInsideOfAnotherStrategy) {
  MirroredStrategy other(testing::cpu_devices(2));
  const auto refused = [](const auto& call) {
    EXPECT_THAT(call, throws_error(ErrorCode::failed_precondition, "mixing strategies"));
  };
  const Variable v = make(1), read = on_read(1, Aggregation::sum);
  for (const Variable& each : {v, read, two_.local_results(v)[1]}) {
    refused([&] { other.run([&] { return each.tensor() * 2; }); });
    const StrategyScope scope = other.scope();
    refused([&] { each.tensor(); });
  }
  refused([&] {
    other.run([&] {
      const SyncOnReadScope scope;
      read.tensor();
    });
  });
  EXPECT_EQ(number(v.tensor()), 1) << "no strategy is current";
}

TEST_F(MirroredVariables, AreNotChangedInsideOfAnotherStrategy) {
  MirroredStrategy other(testing::cpu_devices(2));
  const Variable v = make(1);
  const Variable rows = two_.variable("rows", row({1, 2}));
  const SGD sgd({v}, {.learning_rate = 1});
  const at::Tensor loss = v.tensor() * 2;
  const auto refused = [&](const auto& call) {
    const auto mixing = throws_error(ErrorCode::failed_precondition, "mixing strategies");
    EXPECT_THAT([&] { other.run(call); }, mixing);
    const StrategyScope scope = other.scope();
    EXPECT_THAT(call, mixing);
  };
  refused([&] { sgd.minimize(loss); });
  refused([&] { sgd.minimize(v.tensor() * 2); });
  refused([&] { sgd.apply_gradients({{scalar(1), v}}); });
  const at::Tensor first = index({0}), value = row({5});
  refused([&] { rows.scatter_add(first, value); });
  refused([&] { rows.scatter_sub(first, value); });
  refused([&] { rows.scatter_mul(first, value); });
  refused([&] { rows.scatter_div(first, value); });
  refused([&] { rows.scatter_min(first, value); });
  refused([&] { rows.scatter_max(first, value); });
  refused([&] { rows.scatter_update(first, value); });
  EXPECT_THAT(components(v), Each(1));
  EXPECT_THAT(numbers(rows.read()), ElementsAre(1, 2));
}

TEST_F(MirroredVariables, AreNotCombinedByAnotherStrategy) {
  MirroredStrategy other(testing::cpu_devices(2));
  const Variable v = make(1);
  const auto mixing = throws_error(ErrorCode::failed_precondition, "mixing strategies");
  EXPECT_THAT([&] { other.run([&] { get_replica_context()->all_reduce("sum", v); }); }, mixing);
  EXPECT_THAT([&] { other.run([&] { get_replica_context()->all_gather(v, 0); }); }, mixing);
  const auto foreign = throws_error(ErrorCode::invalid_argument, "of another strategy");
  for (const Variable& each : {v, two_.local_results(v)[1]}) {
    EXPECT_THAT([&] { other.reduce("mean", each); }, foreign);
    EXPECT_THAT([&] { other.gather(each, 0); }, foreign);
    EXPECT_THAT([&] { other.local_results(each); }, foreign);
  }
  OneDeviceStrategy one("CPU:0");
  EXPECT_THAT([&] { one.reduce("mean", v); }, foreign);
  // Plain variables are values like others.
  EXPECT_EQ(number(other.reduce("mean", one.variable("o", scalar(3)))), 3);
  EXPECT_EQ(number(other.reduce("mean", local_variable("p", scalar(3)))), 3);
}

// CTX-063: as tf's, they are plain variables.
TEST_F(MirroredVariables, OfOneDeviceAreUsedInsideOfAnotherStrategy) {
  OneDeviceStrategy one("CPU:0");
  const Variable v = one.variable("v", scalar(1));
  {
    const StrategyScope scope = two_.scope();
    v.assign_add(1);
    EXPECT_EQ(number(v.read()), 2);
  }
  two_.run([&] { EXPECT_EQ(number(v.tensor()), 2); });
  EXPECT_THAT([&] { two_.run([&] { v.assign(scalar(id())); }); },
              throws_error(ErrorCode::unimplemented, "expected variables of the strategy"));
  EXPECT_EQ(number(v.read()), 2);
}

// An error in one of several assignments leaves all as they were.
TEST_F(MirroredVariables, AssignmentsOfOneCallAreCheckedTogether) {
  const Variable none = make(1), sum = make(1, Aggregation::sum);
  const at::Tensor shared = scalar(5);
  EXPECT_THAT(
      ([&] {
        two_.run([&] {
          write_values(std::array{VariableWrite{none, internal::Effect::Kind::assign, shared},
                                  VariableWrite{sum, internal::Effect::Kind::assign, shared}});
        });
      }),
      throws_error(ErrorCode::invalid_argument, "the same in all"));
  EXPECT_THAT(components(none), Each(1));
}

TEST_F(MirroredVariables, AValueOfAnotherShapeInOneReplicaIsRefused) {
  const Variable v = make(1, Aggregation::sum);
  EXPECT_THAT([&] { two_.run([&] {
                      v.assign(id() == 1 ? row({1, 2}) : scalar(2));
                    }); },
              throws_error(ErrorCode::invalid_argument, "float64[2] (variable 'v1')"));
  EXPECT_THAT(components(v), Each(1));
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
  EXPECT_FALSE(made.is_wrapped()) << "the same variable in all replicas";
  EXPECT_THAT(components(made.value()), Each(5)) << "the first replica's initial value";
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

TEST_F(MirroredVariables, ReplicasApplyGradientsOfTheSameVariables) {
  const Variable a = make(1), b = make(1);
  const SGD sgd({a, b}, {.learning_rate = 1});
  const auto refused = [&](const auto& gradients_of, const std::string& got) {
    EXPECT_THAT(
        [&] { two_.run([&] { sgd.apply_gradients(gradients_of(id() == 0)); }); },
        throws_error(ErrorCode::invalid_argument,
                     "expected the same variables in the same order in all replicas, got " + got));
  };
  using Gradients = std::vector<std::pair<at::Tensor, Variable>>;
  const at::Tensor one = scalar(1);
  refused(
      [&](bool is_first) {
        return Gradients{{one, is_first ? a : b}};
      },
      "'v1' in replica 0 and 'v2' in replica 1");
  refused(
      [&](bool is_first) {
        return is_first ? Gradients{{one, a}, {one, b}} : Gradients{{one, b}, {one, a}};
      },
      "'v1', 'v2' in replica 0 and 'v2', 'v1' in replica 1");
  refused(
      [&](bool is_first) {
        return is_first ? Gradients{{one, a}, {one, b}} : Gradients{{one, a}};
      },
      "'v1', 'v2' in replica 0 and 'v1' in replica 1");
  for (const Variable& each : {a, b}) EXPECT_THAT(components(each), Each(1));
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
  EXPECT_THAT(
      ([&] {
        two_.run([&] {
          if (id() == 1) sgd.minimize(w.tensor() * 2);
        });
      }),
      throws_error(ErrorCode::failed_precondition, "the same calls in which replicas meet"));
  EXPECT_THAT(components(w), Each(1));
}

TEST_F(MirroredVariables, AnUpdateOutsideOfRunConcernsAllComponents) {
  const Variable w = make(1);
  const SGD sgd({w}, {.learning_rate = 0.5, .momentum = 0.9});
  for (int i = 0; i < 2; ++i) sgd.apply_gradients({{scalar(1), w}});
  EXPECT_EQ(components(w)[0], components(w)[1]);
  EXPECT_LT(components(w)[0], 0);
}

// Regression: the update of one variable changed the gradient of the next in one replica.
TEST_F(MirroredVariables, AGradientMayBeAViewOfAnyComponent) {
  const Variable a = make(1), b = make(1);
  const SGD sgd({a, b}, {.learning_rate = 0.5});
  for (const Variable& component : internal::component_variables(a)) {
    const at::Tensor view = component.tensor().detach();
    const double before_a = number(a.read()), before_b = number(b.read());
    sgd.apply_gradients({{view, a}, {view, b}});
    EXPECT_THAT(components(a), Each(before_a - 0.5 * before_a));
    EXPECT_THAT(components(b), Each(before_b - 0.5 * before_a));
  }
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
