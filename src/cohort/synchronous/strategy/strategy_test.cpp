// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/strategy.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>
#include <type_traits>

#include "cohort/core/error.h"
#include "cohort/strategy/context_fixture.h"
#include "cohort/strategy/contexts.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

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

}  // namespace
}  // namespace cohort
