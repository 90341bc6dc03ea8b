// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/strategy.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>
#include <type_traits>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/core/error.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/strategy/replicas/context_fixture.h"
#include "cohort/strategy/replicas/contexts.h"
#include "cohort/strategy/synchronous_strategy.h"
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

// A module without parameters, as replicate() sees one.
struct EmptyModule {
  struct Entry {
    std::string key() const { return {}; }
    at::Tensor value() const { return {}; }
  };
  std::vector<Entry> named_parameters() const { return {}; }
  std::vector<Entry> named_buffers() const { return {}; }
  std::vector<EmptyModule*> modules(bool /*include_self*/) const { return {}; }
  bool is_training() const { return true; }
  void train(bool /*is_on*/) {}
};

// The comment above a test names the recorded cases (context.json) whose rules it checks, as in
// every_strategy_context_test.cpp. Tests of creator scopes and of update() are in
// strategy_extended_test.cpp; LibTorch has no device scopes.
class ContextTest : public testing::ContextFixture {
 protected:
  OneDeviceStrategy s;
  OneDeviceStrategy t;
};

// Runs the second of its two replicas first.
class BackwardStrategy final : public Strategy {
 public:
  std::string_view name() const override { return "backward"; }
  int num_replicas_in_sync() const override { return 2; }
  std::vector<std::string> worker_devices() const override { return {"CPU:0", "CPU:1"}; }
  std::vector<std::string> parameter_devices() const override { return worker_devices(); }

 protected:
  int num_local_replicas() const override { return 2; }
  void run_replicas(const std::function<void(ReplicaContext&)>& body) override {
    for (const int replica : {1, 0}) internal::in_replica_context(*this, replica, body, replica);
  }
  std::shared_ptr<const input::InputHost> input_host() override { return nullptr; }
};

TEST_F(ContextTest, ResultsAreInTheReplicasOrderWhateverRunsFirst) {
  BackwardStrategy backward;
  const auto ids = backward.run([] { return get_replica_context()->replica_id_in_sync_group(); });
  EXPECT_EQ(ids.local_results(), (std::vector<int>{0, 1}));
}

// CTX-001
TEST_F(ContextTest, OutsideAnyScopeTheDefaultStrategyRules) { expect_default(); }

// CTX-064
TEST_F(ContextTest, MergeCallIsCrossReplicaContextOfItsStrategy) {
  int merges = 0;
  s.run([&] {
    const int result = get_replica_context()->merge_call(
        [&](Strategy& strategy, int x) {
          ++merges;
          EXPECT_EQ(&strategy, &s);
          expect_cross(s);
          EXPECT_EQ(s.run([] { return 5; }), 5) << "a nested run is allowed here";
          return x + 1;
        },
        1);
    EXPECT_EQ(result, 2);
  });
  EXPECT_EQ(merges, 1);
}

// CTX-045
TEST_F(ContextTest, MergeCallFromTheDefaultReplicaRunsInline) {
  const Nest result = get_replica_context()->merge_call(
      [](Strategy& strategy, const Nest& argument) {
        EXPECT_EQ(&strategy, &default_strategy());
        EXPECT_TRUE(in_cross_replica_context());
        EXPECT_FALSE(has_strategy());
        return argument;
      },
      Nest("x"));
  EXPECT_EQ(result.text(), "x");
}

TEST_F(ContextTest, MergeCallGivesPerReplicaValuesAndReturnsTheReplicasComponent) {
  int runs = 0;
  s.run([&] {
    ++runs;
    ReplicaContext& replica = *get_replica_context();
    const auto sum = replica.merge_call(
        [](Strategy& strategy, const PerReplica<at::Tensor>& loss, PerReplica<double> scale) {
          EXPECT_EQ(loss.size(), 1U);
          EXPECT_FALSE(loss.is_wrapped()) << "as run() returns it with one replica";
          return strategy.reduce(ReduceOp::sum, loss).mul(scale.value());
        },
        at::full({}, 1.5), 2.0);
    EXPECT_EQ(sum.item<float>(), 3.0F);
    const auto component =
        replica.merge_call([](Strategy& strategy,
                              PerReplica<int> x) { return strategy.run([&] { return x[0] + 1; }); },
                           4);
    static_assert(std::is_same_v<decltype(component), const int>);
    EXPECT_EQ(component, 5);
    bool has_run = false;
    const auto set = [&](Strategy& strategy) { return strategy.run([&] { has_run = true; }); };
    static_assert(std::is_void_v<decltype(replica.merge_call(set))>);
    replica.merge_call(set);
    EXPECT_TRUE(has_run);
  });
  EXPECT_EQ(runs, 1);
}

TEST_F(ContextTest, AnErrorOfAMergeRestoresTheReplicasContext) {
  int runs = 0;
  s.run([&] {
    ++runs;
    ReplicaContext& replica = *get_replica_context();
    EXPECT_EQ(code_of([&] {
                replica.merge_call(
                    [](Strategy&) { internal::throw_error(ErrorCode::data_loss, "torn"); });
              }),
              ErrorCode::data_loss);
    EXPECT_EQ(get_replica_context(), &replica);
  });
  EXPECT_EQ(runs, 1);
}

TEST_F(ContextTest, StrategiesWithoutVariablesNameThemselvesAndTheRemedy) {
  const auto refused = [](Strategy& strategy) {
    const std::string got =
        "got '" + std::string(strategy.name()) + "'; call the method of the strategy that trains";
    const auto refusal = testing::throws_error(ErrorCode::unimplemented, got);
    EXPECT_THAT([&] { strategy.variable("v", at::full({}, 1.5)); }, refusal);
    EXPECT_THAT(
        [&] {
          strategy.variable("v", {at::kFloat, {{2}}}, Initializer::zeros());
        },
        refusal);
    bool was_made = false;
    EXPECT_THAT(
        [&] {
          strategy.replicate([&] {
            was_made = true;
            return EmptyModule();
          });
        },
        refusal);
    EXPECT_FALSE(was_made);
  };
  refused(default_strategy());
}

// CTX-058, CTX-060
TEST_F(ContextTest, AReplicaContextWorksOnlyWhileItIsTheCurrentOne) {
  const auto merge = [](const ReplicaContext& context) { context.merge_call([](Strategy&) {}); };
  const ReplicaContext outer = *get_replica_context();
  std::optional<ReplicaContext> kept;
  s.run([&] {
    EXPECT_THAT([&] { merge(outer); },
                testing::throws_error(ErrorCode::failed_precondition, "of another strategy"));
    kept = *get_replica_context();
    merge(*kept);
  });
  s.run([&] {
    EXPECT_THAT([&] { merge(*kept); },
                testing::throws_error(ErrorCode::failed_precondition, "another replica context"));
  });
  const StrategyScope scope = s.scope();
  EXPECT_THAT([&] { merge(outer); },
              testing::throws_error(ErrorCode::failed_precondition, "expected a replica context"));
}

// CTX-049, CTX-050, CTX-052
TEST_F(ContextTest, TheDefaultScopeChangesNothingAndEndsAtAnother) {
  {
    const StrategyScope scope = default_strategy().scope();
    expect_default();
  }
  const StrategyScope scope = s.scope();
  EXPECT_EQ(code_of([&] { const StrategyScope other = default_strategy().scope(); }),
            ErrorCode::failed_precondition);
}

// CTX-011
TEST_F(ContextTest, TheDefaultStrategyRunsInItsReplicaContext) {
  EXPECT_EQ(default_strategy().run([&] {
    expect_default();
    return get_replica_context()->num_replicas_in_sync();
  }),
            1);
}

// CTX-072: those of its properties that exist here.
TEST_F(ContextTest, TheDefaultStrategyHasOneReplica) {
  EXPECT_EQ(default_strategy().num_replicas_in_sync(), 1);
}

// CTX-053, CTX-054, CTX-057
TEST_F(ContextTest, StrategiesAreNeverCopiedAndTheDefaultIsOne) {
  static_assert(!std::is_copy_constructible_v<Strategy> && !std::is_copy_assignable_v<Strategy>);
  static_assert(!std::is_copy_constructible_v<ParameterServerStrategy>);
  const Strategy* other = nullptr;
  std::thread([&] { other = &default_strategy(); }).join();
  EXPECT_EQ(other, &default_strategy());
}

// CTX-049, CTX-063
TEST_F(ContextTest, AVariableIsReadInsideAnotherScope) {
  std::optional<Variable> v;
  {
    const StrategyScope scope = default_strategy().scope();
    v = local_variable("v", at::full({}, 1.5));
    EXPECT_EQ(v->read().item<float>(), 1.5F);
  }
  const StrategyScope scope = s.scope();
  EXPECT_EQ(v->read().item<float>(), 1.5F);
}

// CTX-023, CTX-030: for every strategy, and before anything connects.
TEST_F(ContextTest, ReduceNeedsItsOwnCrossReplicaContext) {
  ParameterServerStrategy ps(chief_resolver());
  EXPECT_EQ(ps.reduce("sum", Nest(3)).integer(), 3);
  ps.run([&] {
    EXPECT_EQ(code_of([&] { ps.reduce("sum", Nest(1)); }), ErrorCode::failed_precondition);
  });
  const StrategyScope scope = s.scope();
  EXPECT_EQ(code_of([&] { ps.reduce("sum", Nest(1)); }), ErrorCode::failed_precondition);
}

// Regression: both calls threw unimplemented (spec 2.3, "returned unchanged").
TEST_F(ContextTest, AResultOnTheCoordinatorIsItsOwnReduction) {
  ParameterServerStrategy ps(chief_resolver());
  const auto result = ps.run([] { return at::full({2}, 3.0); });
  EXPECT_EQ(ps.reduce(ReduceOp::sum, result).sum().item<double>(), 6);
  EXPECT_EQ(ps.gather(result, 0).size(0), 2);
}

// CTX-072
TEST_F(ContextTest, TheDefaultStrategyHasNoDevices) {
  EXPECT_EQ(code_of([] { default_strategy().worker_devices(); }), ErrorCode::failed_precondition);
  EXPECT_EQ(code_of([] { default_strategy().parameter_devices(); }),
            ErrorCode::failed_precondition);
}

TEST_F(ContextTest, ModesDoNotLeakToOtherThreads) {
  const StrategyScope scope = s.scope();
  std::thread([&] { EXPECT_FALSE(has_strategy()); }).join();
  expect_cross(s);
}

// CTX-002
TEST_F(ContextTest, TheParameterServerStrategyOnlyValidatesAtFirst) {
  ParameterServerStrategy strategy(chief_resolver());
  EXPECT_EQ(strategy.num_replicas_in_sync(), 1);
  EXPECT_EQ(strategy.parameter_devices(), std::vector<std::string>{"/job:ps/task:0"});
  EXPECT_EQ(strategy.worker_devices(), std::vector<std::string>{"CPU:0"});
  const StrategyScope scope = strategy.scope();
  expect_cross(strategy);
}

TEST_F(ContextTest, TheParameterServerStrategyRefusesABadCluster) {
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

TEST_F(ContextTest, AddressesAreJudgedOnlyWhenTheyAreNeeded) {
  ParameterServerStrategy strategy(
      resolver({{"worker", {"w"}}, {"ps", {"p:0"}}, {"chief", {"c"}}}));
  EXPECT_EQ(code_of([&] { strategy.variable("v", at::full({}, 1.0)); }),
            ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace cohort
