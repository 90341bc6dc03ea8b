// SPDX-License-Identifier: Apache-2.0
// The context rules that hold for every strategy, with one replica and with several. The comment
// above a test names the recorded cases (context.json).
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/collective/group.h"
#include "cohort/strategy/context_fixture.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

struct Kind {
  std::string name;
  std::function<std::unique_ptr<Strategy>()> make;
  std::vector<std::string> devices;
  std::vector<std::string> parameter_devices = {};  // empty: the same
};

class EveryStrategy : public testing::ContextFixture, public ::testing::WithParamInterface<Kind> {
 protected:
  std::unique_ptr<Strategy> s_ = GetParam().make();
  std::unique_ptr<Strategy> t_ = GetParam().make();
  Strategy& s = *s_;
  Strategy& t = *t_;
};

// CTX-002
TEST_P(EveryStrategy, AScopeIsCrossReplicaContextAndEndsWithItsObject) {
  {
    const StrategyScope scope = s.scope();
    expect_cross(s);
  }
  expect_default();
}

// CTX-012
TEST_P(EveryStrategy, AScopeMayBeEnteredAgain) {
  const StrategyScope outer = s.scope();
  {
    const StrategyScope inner = s.scope();
    expect_cross(s);
  }
  expect_cross(s);
}

// CTX-014, CTX-016
TEST_P(EveryStrategy, AnotherStrategysScopeIsMixing) {
  const StrategyScope scope = s.scope();
  EXPECT_EQ(code_of([&] { const StrategyScope other = t.scope(); }),
            ErrorCode::failed_precondition);
  EXPECT_EQ(code_of([&] { t.run([] {}); }), ErrorCode::failed_precondition);
  expect_cross(s);
}

// CTX-006, CTX-010
TEST_P(EveryStrategy, RunIsReplicaContextInAndOutOfScope) {
  const auto probe = [&] {
    EXPECT_EQ(&get_strategy(), &s);
    EXPECT_FALSE(in_cross_replica_context());
    return get_replica_context()->replica_id_in_sync_group();
  };
  std::vector<int> ids(GetParam().devices.size());
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int>(i);
  EXPECT_EQ(s.run(probe).local_results(), ids);
  const StrategyScope scope = s.scope();
  EXPECT_EQ(s.run(probe).local_results(), ids);
  expect_cross(s);
}

// CTX-019, CTX-030, CTX-036
TEST_P(EveryStrategy, ScopeAndRunInsideAReplicaAreRefused) {
  std::atomic<int> runs = 0;
  s.run([&] {
    ++runs;
    EXPECT_EQ(code_of([&] { const StrategyScope scope = s.scope(); }),
              ErrorCode::failed_precondition);
    EXPECT_EQ(code_of([&] { s.run([] {}); }), ErrorCode::failed_precondition);
    const auto one = PerReplica<at::Tensor>::bare(at::ones({}));
    EXPECT_EQ(code_of([&] { s.reduce(ReduceOp::sum, one); }), ErrorCode::failed_precondition);
  });
  EXPECT_EQ(runs, s.num_replicas_in_sync());
}

TEST_P(EveryStrategy, AnotherStrategyInsideAReplicaIsMixing) {
  const auto mixing = testing::throws_error(ErrorCode::failed_precondition, "mixing strategies");
  s.run([&] {
    EXPECT_THAT([&] { const StrategyScope scope = t.scope(); }, mixing);
    EXPECT_THAT([&] { t.run([] {}); }, mixing);
    EXPECT_EQ(&get_strategy(), &s);
    EXPECT_FALSE(in_cross_replica_context());
  });
}

// CTX-068
TEST_P(EveryStrategy, AnErrorInsideRunRestoresTheContext) {
  EXPECT_THROW(s.run([] { throw Error(ErrorCode::aborted, "x"); }), Error);
  expect_default();
}

// CTX-069, CTX-073
TEST_P(EveryStrategy, HasItsDevices) {
  EXPECT_EQ(s.num_replicas_in_sync(), static_cast<int>(GetParam().devices.size()));
  EXPECT_EQ(s.worker_devices(), GetParam().devices);
  EXPECT_EQ(s.parameter_devices(), GetParam().parameter_devices.empty()
                                       ? GetParam().devices
                                       : GetParam().parameter_devices);
}

// CTX-040
TEST_P(EveryStrategy, SettingAStrategyIsCrossReplicaContextUntilTheNext) {
  set_strategy(&s);
  expect_cross(s);
  EXPECT_EQ(s.run([] { return in_cross_replica_context(); })[0], false);
  expect_cross(s);
  set_strategy(&t);
  expect_cross(t);
  EXPECT_EQ(code_of([&] { const StrategyScope scope = s.scope(); }),
            ErrorCode::failed_precondition);
  EXPECT_EQ(code_of([] { const StrategyScope scope = default_strategy().scope(); }),
            ErrorCode::failed_precondition);
  set_strategy(nullptr);
  expect_default();
}

// CTX-042, CTX-044
TEST_P(EveryStrategy, SettingInsideAScopeOrAReplicaIsRefused) {
  {
    const StrategyScope scope = s.scope();
    for (Strategy* strategy : {&s, &t, static_cast<Strategy*>(nullptr)})
      EXPECT_EQ(code_of([&] { set_strategy(strategy); }), ErrorCode::failed_precondition);
    expect_cross(s);
  }
  std::atomic<int> runs = 0;
  s.run([&] {
    ++runs;
    EXPECT_EQ(code_of([&] { set_strategy(&s); }), ErrorCode::failed_precondition);
  });
  EXPECT_EQ(runs, s.num_replicas_in_sync());
}

TEST_P(EveryStrategy, AScopeWithinTheStrategySetEndsBeforeIt) {
  set_strategy(&s);
  {
    const StrategyScope scope = s.scope();
    expect_cross(s);
  }
  expect_cross(s);
  set_strategy(&default_strategy());
  expect_default();
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, EveryStrategy,
    ::testing::Values(
        Kind{"one_device", [] { return std::make_unique<OneDeviceStrategy>("CPU:0"); }, {"CPU:0"}},
        Kind{
            "mirrored",
            [] {
              return std::make_unique<MirroredStrategy>(std::vector<std::string>{"CPU:0", "CPU:1"});
            },
            {"CPU:0", "CPU:1"}},
        Kind{"central_storage",
             [] {
               return std::make_unique<CentralStorageStrategy>(
                   std::vector<std::string>{"CPU:0", "CPU:1"});
             },
             {"CPU:0", "CPU:1"},
             {"CPU:0"}},
        Kind{"multi_worker_mirrored",
             [] {
               return std::make_unique<MultiWorkerMirroredStrategy>(
                   InProcessWorkers(1).group(0),
                   MultiWorkerMirroredOptions{.devices = {"CPU:0", "CPU:1"}});
             },
             {"CPU:0", "CPU:1"}},
        // Contexts do not need the cluster, so this strategy never connects to it.
        Kind{"parameter_server",
             [] {
               return std::make_unique<ParameterServerStrategy>(
                   SimpleResolver(ClusterSpec({{"chief", {"127.0.0.1:3"}},
                                               {"worker", {"127.0.0.1:1"}},
                                               {"ps", {"127.0.0.1:2"}}}),
                                  {.task_type = "chief", .task_id = 0}));
             },
             {"CPU:0"},
             {"/job:ps/task:0"}}),
    [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace cohort
