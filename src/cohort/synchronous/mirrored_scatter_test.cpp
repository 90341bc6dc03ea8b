// SPDX-License-Identifier: Apache-2.0
// scatter_add() and so on, of variables of synchronous strategies.
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cohort/strategy/strategy_extended.h"
#include "cohort/synchronous/mirrored/variable_fixture.h"
#include "cohort/testing/cpu_devices.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::throws_error;

using Scatter = void (Variable::*)(const at::Tensor&, const at::Tensor&) const;
const std::vector<Scatter> kCombinable{&Variable::scatter_add, &Variable::scatter_sub,
                                       &Variable::scatter_mul, &Variable::scatter_div};
const std::vector<Scatter> kOthers{&Variable::scatter_min, &Variable::scatter_max,
                                   &Variable::scatter_update};

class MirroredScatter : public testing::VariableFixture {
 protected:
  Variable make(Strategy& strategy, const std::vector<double>& value, Aggregation aggregation,
                Synchronization synchronization = Synchronization::on_write) {
    return strategy.variable("v" + std::to_string(++made_), row(value),
                             {.synchronization = synchronization, .aggregation = aggregation});
  }
  static std::vector<std::vector<double>> values(const Variable& variable) {
    std::vector<std::vector<double>> all;
    for (const Variable& component : internal::component_variables(variable))
      all.push_back(numbers(component.read()));
    return all;
  }
  int made_ = 0;
  MirroredStrategy two_{testing::cpu_devices(2)};
};

// VAR-19
TEST_F(MirroredScatter, AMeanDividesTheRowsOfAllReplicasBefore) {
  const Variable v = make(two_, {2, 1, 1}, Aggregation::mean);
  two_.run([&] { v.scatter_mul(index({static_cast<std::int64_t>(id())}), row({id() + 2})); });
  EXPECT_THAT(values(v), Each(ElementsAre(2, 1.5, 1)));
}

// VAR-20
TEST_F(MirroredScatter, ASumAppliesTheRowsOfAllReplicas) {
  const Variable v = make(two_, {8, 1, 1}, Aggregation::sum);
  const auto all = [&](Scatter scatter) {
    two_.run([&] { (v.*scatter)(index({0}), row({2 * id() + 2})); });
  };
  all(&Variable::scatter_add);
  EXPECT_THAT(values(v), Each(ElementsAre(14, 1, 1)));
  all(&Variable::scatter_sub);
  EXPECT_THAT(values(v), Each(ElementsAre(8, 1, 1)));
  all(&Variable::scatter_mul);
  EXPECT_THAT(values(v), Each(ElementsAre(64, 1, 1)));
  all(&Variable::scatter_div);
  EXPECT_THAT(values(v), Each(ElementsAre(8, 1, 1)));
  for (const Scatter scatter : kOthers)
    EXPECT_EQ(code_of([&] { all(scatter); }), ErrorCode::unimplemented);
  EXPECT_THAT(values(v), Each(ElementsAre(8, 1, 1)));
}

TEST_F(MirroredScatter, ReplicasMayBringDifferentNumbersOfRows) {
  const Variable v = make(two_, {0, 0, 0}, Aggregation::sum);
  two_.run([&] {
    if (id() == 0) return v.scatter_add(index({}), row({}));
    v.scatter_add(index({2, 0, 2}).to(at::kInt), row({1, 2, 3}));
  });
  EXPECT_THAT(values(v), Each(ElementsAre(2, 0, 4)));
}

// VAR-20
TEST_F(MirroredScatter, OnlyTheFirstReplicasRowsAreApplied) {
  const Variable v = make(two_, {8, 1, 1}, Aggregation::only_first_replica);
  const auto all = [&](Scatter scatter) {
    two_.run([&] { (v.*scatter)(index({static_cast<std::int64_t>(id())}), row({2 * id() + 2})); });
    return values(v)[1][0];
  };
  EXPECT_EQ(all(&Variable::scatter_add), 10);
  EXPECT_EQ(all(&Variable::scatter_sub), 8);
  EXPECT_EQ(all(&Variable::scatter_mul), 16);
  EXPECT_EQ(all(&Variable::scatter_div), 8);
  EXPECT_EQ(all(&Variable::scatter_min), 2);
  v.assign(row({0, 1, 1}));
  EXPECT_EQ(all(&Variable::scatter_max), 2);
  v.assign(row({0, 1, 1}));
  EXPECT_EQ(all(&Variable::scatter_update), 2);
  EXPECT_THAT(values(v), Each(ElementsAre(2, 1, 1)));
}

TEST_F(MirroredScatter, WithoutAnAggregationAReplicaChangesItsOwnRows) {
  const Variable v = make(two_, {0, 0}, Aggregation::none);
  two_.run([&] { v.scatter_update(index({1}), row({id() + 1})); });
  EXPECT_THAT(values(v), ElementsAre(ElementsAre(0, 1), ElementsAre(0, 2)));
}

// VAR-21, VAR-22
TEST_F(MirroredScatter, OutsideOfReplicasAllComponentsChange) {
  for (const Aggregation aggregation :
       {Aggregation::none, Aggregation::sum, Aggregation::mean, Aggregation::only_first_replica}) {
    const Variable v = make(two_, {4, 6}, aggregation);
    v.scatter_add(index({1, 1}), row({2, 3}));
    EXPECT_THAT(values(v), Each(ElementsAre(4, 11)));
    const bool can_update =
        aggregation == Aggregation::none || aggregation == Aggregation::only_first_replica;
    if (!can_update) continue;
    v.scatter_update(index({0}), v.tensor().slice(0, 1, 2));
    EXPECT_THAT(values(v), Each(ElementsAre(11, 11))) << "a view of a component is read before";
  }
}

TEST_F(MirroredScatter, InAnUpdateOneComponentChanges) {
  const Variable v = make(two_, {0, 0}, Aggregation::sum);
  two_.extended().update(
      v,
      [&](const Variable& component, const at::Tensor& x) {
        component.scatter_max(index({0}), x);
        v.scatter_add(index({1}), x);
        EXPECT_EQ(code_of([&] { v.scatter_max(index({1}), x); }), ErrorCode::unimplemented);
      },
      PerReplica<at::Tensor>({row({1}), row({2})}));
  EXPECT_THAT(values(v), ElementsAre(ElementsAre(1, 1), ElementsAre(2, 2)));
}

TEST_F(MirroredScatter, MinimumMaximumAndUpdateCannotBeCombined) {
  for (const Aggregation aggregation : {Aggregation::sum, Aggregation::mean}) {
    const Variable v = make(two_, {1}, aggregation);
    for (const Scatter scatter : kOthers) {
      const auto call = [&] { (v.*scatter)(index({0}), row({5})); };
      EXPECT_THAT(call, throws_error(ErrorCode::unimplemented, "none or only_first_replica, got "));
      EXPECT_EQ(code_of([&] { two_.run(call); }), ErrorCode::unimplemented);
    }
    EXPECT_THAT(values(v), Each(ElementsAre(1)));
  }
}

// VAR-23
TEST_F(MirroredScatter, OnReadIsRefusedInEveryContext) {
  for (const Aggregation aggregation : {Aggregation::none, Aggregation::sum}) {
    const Variable v = make(two_, {1}, aggregation, Synchronization::on_read);
    std::vector<Scatter> all = kCombinable;
    all.insert(all.end(), kOthers.begin(), kOthers.end());
    for (const Scatter scatter : all) {
      const auto call = [&] { (v.*scatter)(index({0}), row({5})); };
      EXPECT_THAT(call, throws_error(ErrorCode::unimplemented, "synchronized on read"));
      EXPECT_EQ(code_of([&] { two_.run(call); }), ErrorCode::unimplemented);
      EXPECT_EQ(code_of([&] { two_.extended().update(v, [&](const Variable&) { call(); }); }),
                ErrorCode::unimplemented);
    }
    EXPECT_THAT(values(v), Each(ElementsAre(1)));
  }
}

// Regression: with one replica it was written, so a program failed only when it got more of them.
TEST_F(MirroredScatter, OnReadIsRefusedWithOneReplicaToo) {
  MirroredStrategy one(testing::cpu_devices(1));
  const Variable v = make(one, {1}, Aggregation::sum, Synchronization::on_read);
  const auto call = [&] { v.scatter_add(index({0}), row({5})); };
  EXPECT_THAT(call, throws_error(ErrorCode::unimplemented, "synchronized on read"));
  EXPECT_EQ(code_of([&] { one.run(call); }), ErrorCode::unimplemented);
  EXPECT_EQ(code_of([&] { one.function(call)(); }), ErrorCode::unimplemented);
  EXPECT_THAT(numbers(v.read()), ElementsAre(1));
}

// There the variable has one value for all replicas, as in TensorFlow.
TEST_F(MirroredScatter, OnReadOfOneDeviceActsDirectly) {
  OneDeviceStrategy one("CPU:0");
  const Variable v = make(one, {1}, Aggregation::sum, Synchronization::on_read);
  one.run([&] { v.scatter_add(index({0}), row({5})); });
  EXPECT_THAT(numbers(v.read()), ElementsAre(6));
}

// As of an assignment: the tensors are one value of all replicas.
TEST_F(MirroredScatter, OneTensorOfAllReplicasHasAMeanAndNoSum) {
  const at::Tensor zero = index({0}), five = row({5});
  const Variable sum = make(two_, {1}, Aggregation::sum), mean = make(two_, {1}, Aggregation::mean);
  two_.run([&] { mean.scatter_add(zero, five); });
  EXPECT_THAT(values(mean), Each(ElementsAre(6)));
  EXPECT_THAT([&] { two_.run([&] { sum.scatter_add(zero, five); }); },
              throws_error(ErrorCode::invalid_argument, "the same in all"));
  EXPECT_THAT(values(sum), Each(ElementsAre(1)));
}

TEST_F(MirroredScatter, AnErrorOfOneReplicaChangesNothing) {
  const Variable v = make(two_, {1, 1}, Aggregation::sum),
                 other = make(two_, {1}, Aggregation::sum);
  EXPECT_THAT(
      [&] {
        two_.run([&] { v.scatter_add(index({static_cast<std::int64_t>(id()) * 2}), row({1})); });
      },
      throws_error(ErrorCode::invalid_argument, "the 2 rows"));
  EXPECT_THAT(
      ([&] { two_.run([&] { (id() == 0 ? v : other).scatter_add(index({0}), row({1})); }); }),
      throws_error(ErrorCode::invalid_argument, "the same assignment in all replicas"));
  EXPECT_THAT(values(v), Each(ElementsAre(1, 1)));
}

TEST_F(MirroredScatter, OfOneReplicaActsDirectly) {
  OneDeviceStrategy one("CPU:0");
  const Variable v = make(one, {1, 1}, Aggregation::sum);
  one.run([&] { v.scatter_max(index({0}), row({5})); });
  v.scatter_update(index({1}), row({6}));
  EXPECT_THAT(numbers(v.read()), ElementsAre(5, 6));
  MirroredStrategy mirrored(testing::cpu_devices(1));
  const Variable m = make(mirrored, {1, 1}, Aggregation::mean);
  mirrored.run([&] { m.scatter_add(index({0}), row({5})); });
  EXPECT_THAT(numbers(m.read()), ElementsAre(6, 1));
}

TEST_F(MirroredScatter, LocalVariablesInReplicasAreRefused) {
  const Variable local = local_variable("l", row({1}), false);
  EXPECT_THAT(
      [&] { two_.run([&] { local.scatter_add(index({0}), row({1})); }); },
      throws_error(ErrorCode::unimplemented, "[variable.scatter_add] expected variables of "));
}

}  // namespace
}  // namespace cohort
