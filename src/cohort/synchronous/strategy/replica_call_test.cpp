// SPDX-License-Identifier: Apache-2.0
// Arguments and results of run(). The comment above a test names the rows of the specification, and
// the recorded cases.
#include "cohort/strategy/replica_call.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "cohort/strategy/context_fixture.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using testing::throws_error;

class RunResults : public testing::ContextFixture {
 protected:
  static int id() { return get_replica_context()->replica_id_in_sync_group(); }
  MirroredStrategy two_{{"CPU:0", "CPU:1"}};
};

// RUN-16, RUN-041, RUN-043
TEST_F(RunResults, ANestIsBareIfEveryLeafIsOneObject) {
  const at::Tensor shared = at::ones({2});
  const auto result = two_.run([&] {
    return Nest::tuple({shared, Nest(true), Nest("s"), Nest()});
  });
  EXPECT_FALSE(result.is_wrapped());
  EXPECT_TRUE(result.value().items()[0].tensor().is_same(shared));
  EXPECT_FALSE(two_.run([] { return Nest::list({}); }).is_wrapped());
  EXPECT_TRUE(two_.run([] { return Nest(at::ones({})); }).is_wrapped()) << "equal, not the same";
  EXPECT_TRUE(two_.run([&] { return Nest::list({shared, Nest(id())}); }).is_wrapped());
}

// Regression: equal numbers were one value, so that what could be done with a result depended on
// its values.
TEST_F(RunResults, ANumberIsOneOfEachReplica) {
  for (const Nest& number : {Nest(4), Nest(1.5)}) {
    const auto result = two_.run([&] { return number; });
    EXPECT_TRUE(result.is_wrapped());
    EXPECT_EQ(result.size(), 2U);
    EXPECT_EQ(two_.run([&] { return Nest::tuple({number, Nest("s")}); }).size(), 2U);
  }
}

// RUN-045, RUN-046
TEST_F(RunResults, LeavesMayBeOfDifferentKinds) {
  const auto result = two_.run([] { return id() == 0 ? Nest() : Nest(at::ones({})); });
  EXPECT_TRUE(result[0].is_null());
  EXPECT_TRUE(result[1].is_tensor());
  EXPECT_EQ(two_.run([] { return id() == 0 ? Nest("a") : Nest(3); })[1].integer(), 3);
}

// RUN-17, RUN-047, RUN-049
TEST_F(RunResults, StructuresThatDifferAreRefusedByTheirPlace) {
  const auto refused = [&](const Nest& first, const Nest& second, const std::string& words) {
    EXPECT_THAT([&] { two_.run([&] { return id() == 0 ? first : second; }); },
                throws_error(ErrorCode::invalid_argument, words));
  };
  const Nest one(1);
  refused(Nest::list({one}), Nest::list({one, one}), "[strategy.run] the value of replica 1");
  refused(Nest::tuple({one}), one, "expected tuple of 1, got int");
  refused(Nest::tuple({one}), Nest::list({one}), "tuple");
  refused(Nest::map({{"a", one}}), Nest::map({{"b", one}}), "map of {a}, got map of {b}");
  refused(Nest::list({one, Nest::map({{"b", Nest::list({one})}})}),
          Nest::list({one, Nest::map({{"b", one}})}), "at [1]['b']: expected list of 1, got int");
}

// 2.1; RUN-053, RUN-061
TEST_F(RunResults, VariablesPassWholeAndComeBackAsThemselves) {
  const Variable v = two_.variable("v", at::full({}, 2.0),
                                   {.synchronization = VariableSynchronization::on_read,
                                    .aggregation = VariableAggregation::sum});
  const auto sums = two_.run(
      [](const Variable& each) {
        each.assign_add(at::full({}, static_cast<double>(id())));
        return each.read();
      },
      v);
  EXPECT_EQ(sums[0].item<double>(), 2);
  EXPECT_EQ(sums[1].item<double>(), 3);
  const auto same = two_.run([](const Variable& each) { return each; }, v);
  EXPECT_FALSE(same.is_wrapped());
  EXPECT_TRUE(same.value() == v);
  const std::vector<Variable> parts = two_.local_results(v);
  const auto own = two_.run([&] { return parts[static_cast<std::size_t>(id())]; });
  EXPECT_TRUE(own.value() == v) << "its components are the variable";
  EXPECT_TRUE(two_.run([&] { return parts[1]; }).value() == parts[1]);
  EXPECT_EQ(two_.run([&] { return parts[static_cast<std::size_t>(1 - id())]; }).size(), 2U);
}

// RUN-071, RUN-073
TEST_F(RunResults, LocalResultsOfNestsAreOneForEachReplica) {
  const Nest value(at::ones({}));
  EXPECT_EQ(two_.local_results(value).size(), 1U);
  EXPECT_EQ(two_.local_results(Nest(3)).size(), 1U);
  EXPECT_EQ(two_.local_results(Nest::list({value})).size(), 2U);
  EXPECT_EQ(two_.local_results(Nest::list({})).size(), 2U);
  EXPECT_EQ(two_.local_results(PerReplica<Nest>::bare(Nest::map({{"a", value}}))).size(), 2U);
  EXPECT_EQ(two_.local_results(PerReplica<Nest>({Nest(1), Nest(2)}))[1].integer(), 2);
  EXPECT_EQ(OneDeviceStrategy().local_results(Nest::list({})).size(), 1U);
  EXPECT_EQ(default_strategy().local_results(Nest::list({value})).size(), 1U);
}

}  // namespace
}  // namespace cohort
