// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/core/error.h"
#include "cohort/strategy/context_fixture.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

// Nothing connects before the first variable, so no such cluster needs to exist.
SimpleResolver resolver(std::map<std::string, std::vector<std::string>> jobs = {
                            {"worker", {"127.0.0.1:1"}}, {"ps", {"127.0.0.1:2"}}}) {
  return SimpleResolver(ClusterSpec(std::move(jobs)), {.task_type = "chief", .task_id = 0});
}

SimpleResolver chief_resolver() {
  return resolver(
      {{"chief", {"127.0.0.1:3"}}, {"worker", {"127.0.0.1:1"}}, {"ps", {"127.0.0.1:2"}}});
}

// The comment above a test names the recorded cases (context.json) whose rules it checks.
class ParameterServerContextTest : public testing::ContextFixture {};

static_assert(!std::is_copy_constructible_v<ParameterServerStrategy>);  // CTX-053

// CTX-023, CTX-030: for every strategy, and before anything connects.
TEST_F(ParameterServerContextTest, ReduceNeedsItsOwnCrossReplicaContext) {
  ParameterServerStrategy ps(chief_resolver());
  EXPECT_EQ(ps.reduce("sum", Nest(3)).integer(), 3);
  ps.run([&] {
    EXPECT_EQ(code_of([&] { ps.reduce("sum", Nest(1)); }), ErrorCode::failed_precondition);
  });
  ParameterServerStrategy other(chief_resolver());
  const StrategyScope scope = other.scope();
  EXPECT_EQ(code_of([&] { ps.reduce("sum", Nest(1)); }), ErrorCode::failed_precondition);
}

// Regression: it was nullptr, as of a strategy that needs no cluster.
TEST_F(ParameterServerContextTest, ResolverGivesTheAnswersOfTheConstructorsArgument) {
  SimpleResolver given = chief_resolver();
  ParameterServerStrategy ps(given);
  given.set_task_type("worker");
  const Strategy& any = ps;
  ASSERT_NE(any.cluster_resolver(), nullptr);
  EXPECT_EQ(any.cluster_resolver()->task_type(), "chief");
  EXPECT_EQ(any.cluster_resolver()->cluster_spec(), given.cluster_spec());
  EXPECT_EQ(any.cluster_resolver()->master(), chief_resolver().master());
}

// Regression: the address of the own task was asked for before the task was checked.
TEST_F(ParameterServerContextTest, AMisspelledTaskIsNamedAndNoneIsACoordinator) {
  const ClusterSpec spec({{"ps", {"p:1"}}, {"worker", {"w:1"}}});
  EXPECT_THAT(
      [&] {
        ParameterServerStrategy ps(SimpleResolver(spec, {.task_type = "wroker", .task_id = 0}));
      },
      testing::throws_error(ErrorCode::invalid_argument, "own task's type"));
  const ParameterServerStrategy ps(SimpleResolver{spec});
  EXPECT_EQ(ps.cluster_resolver()->task_type(), std::nullopt);
}

// Regression: both calls threw unimplemented (spec 2.3, "returned unchanged").
TEST_F(ParameterServerContextTest, AResultOnTheCoordinatorIsItsOwnReduction) {
  ParameterServerStrategy ps(chief_resolver());
  const auto result = ps.run([] { return at::full({2}, 3.0); });
  EXPECT_EQ(ps.reduce(ReduceOp::sum, result).sum().item<double>(), 6);
  EXPECT_EQ(ps.gather(result, 0).size(0), 2);
}

// CTX-002
TEST_F(ParameterServerContextTest, TheParameterServerStrategyOnlyValidatesAtFirst) {
  ParameterServerStrategy strategy(chief_resolver());
  EXPECT_EQ(strategy.num_replicas_in_sync(), 1);
  EXPECT_EQ(strategy.parameter_devices(), std::vector<std::string>{"/job:ps/task:0"});
  EXPECT_EQ(strategy.worker_devices(), std::vector<std::string>{"CPU:0"});
  const StrategyScope scope = strategy.scope();
  expect_cross(strategy);
}

TEST_F(ParameterServerContextTest, TheParameterServerStrategyRefusesABadCluster) {
  const auto construct = [&](std::map<std::string, std::vector<std::string>> jobs) {
    return code_of([&] { ParameterServerStrategy strategy(resolver(std::move(jobs))); });
  };
  EXPECT_EQ(construct({}), ErrorCode::invalid_argument);
  EXPECT_EQ(construct({{"chief", {"a:1"}}, {"worker", {"b:1"}}}), ErrorCode::invalid_argument)
      << "no ps";
  EXPECT_EQ(construct({{"chief", {"a:1"}}, {"ps", {"b:1"}}}), ErrorCode::invalid_argument)
      << "no worker";
  EXPECT_EQ(construct({{"chief", {"a:1", "c:1"}}, {"worker", {"d:1"}}, {"ps", {"b:1"}}}),
            ErrorCode::invalid_argument);
  EXPECT_EQ(construct({{"foo", {"a:1"}}, {"worker", {"d:1"}}, {"ps", {"b:1"}}}),
            ErrorCode::invalid_argument);
}

TEST_F(ParameterServerContextTest, AddressesAreJudgedOnlyWhenTheyAreNeeded) {
  ParameterServerStrategy strategy(
      resolver({{"worker", {"w"}}, {"ps", {"p:0"}}, {"chief", {"c"}}}));
  EXPECT_EQ(code_of([&] { strategy.variable("v", at::full({}, 1.0)); }),
            ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace cohort
