// SPDX-License-Identifier: Apache-2.0
// How long a coordinator keeps variables and functions that the user has dropped.
#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "cohort/parameter_server_strategy/parameter_server_home.h"
#include "cohort/testing/coordinator_fixture.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::throws_error;

class UnusedInCoordinator : public testing::CoordinatorFixture {
 protected:
  bool has(const std::string& name) {
    strategy().home()->drop_unused();
    return strategy().home()->variables().find(name) != nullptr;
  }
  std::optional<Variable> variable = strategy().variable("w", at::ones({2}));
};

// The function has no handle of its own.
TEST_F(UnusedInCoordinator, AFunctionKeepsTheVariablesOfItsPrograms) {
  std::optional<ClusterCoordinator> coordinator(strategy());
  std::optional<Function> step([&] { variable->assign_add(at::ones({2})); });
  coordinator->schedule(*step);
  coordinator->join();
  variable.reset();
  EXPECT_TRUE(has("w"));
  EXPECT_THAT([&] { strategy().variable("w", at::ones({2})); },
              throws_error(ErrorCode::already_exists, "the functions that use it"));
  step.reset();
  variable = strategy().variable("w", at::ones({2}));
  variable.reset();
  EXPECT_FALSE(has("w"));
}

TEST_F(UnusedInCoordinator, JoinForgetsFunctions) {
  ClusterCoordinator coordinator(strategy());
  const auto used = std::make_shared<int>();
  coordinator.schedule(Function([used, this] { variable->assign_add(at::ones({2})); }));
  coordinator.join();
  EXPECT_EQ(used.use_count(), 1);
}

// Its worker may be lost, and then another one needs the function and the variable.
TEST_F(UnusedInCoordinator, AClosureKeepsItsFunctionAndItsVariables) {
  worker.answers = false;
  ClusterCoordinator coordinator(strategy());
  std::optional<Function> step([&] { variable->assign_add(at::ones({2})); });
  const RemoteValue result = coordinator.schedule(*step);
  ASSERT_TRUE(worker.await_closures(1));
  step.reset();
  variable.reset();
  EXPECT_FALSE(coordinator.join(std::chrono::milliseconds(1)));  // forgets unused functions
  EXPECT_TRUE(has("w"));
  const std::size_t before = worker.functions().size();
  worker.close_channels();
  ASSERT_TRUE(worker.await_closures(2)) << "it is sent again";
  EXPECT_EQ(worker.functions().size(), before + 1);
  worker.end({{.closure_id = 1}});
  coordinator.join();
  EXPECT_FALSE(has("w"));
}

TEST_F(UnusedInCoordinator, AFunctionThatIsScheduledAgainIsNotTracedAgain) {
  ClusterCoordinator coordinator(strategy());
  const Function step([&] { variable->assign_add(at::ones({2})); });
  for (int i = 0; i < 3; ++i) {
    coordinator.schedule(step);
    coordinator.join();
  }
  EXPECT_EQ(coordinator.statistics().traces, 1U);
}

}  // namespace
}  // namespace cohort
