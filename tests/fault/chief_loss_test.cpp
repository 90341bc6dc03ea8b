// SPDX-License-Identifier: Apache-2.0
// Coordinators that go silent while a job runs, and their successors.
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <csignal>
#include <optional>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/running_program.h"

namespace cohort {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);
const std::string kDigits = COHORT_SOURCE_DIR "/examples/data/digits";

using ChiefLossTest = testing::LeavesNoProcess;

// A chief whose machine has gone leaves connections that stand until TCP gives them up, half a
// minute later; so does one that is stopped. Its next start was refused all that time.
TEST_F(ChiefLossTest, TheNextStartTakesThePlaceOfASilentChief) {
  const testing::TestCluster cluster(
      {.workers = 1, .ps = 1, .command = {COHORT_COMMAND, "server"}, .data_dirs = {kDigits}});
  testing::RunningProgram first(
      {EXAMPLE_PROGRAM, "--data", "digits", "--data-dir", kDigits, "--epochs", "100000"},
      {{"TF_CONFIG", cluster.tf_config("chief:0")}});
  const auto has_run = [&] {
    try {
      return cluster.health("worker:0").closures_run > 0;
    } catch (const Error&) {  // it is starting
      return false;
    }
  };
  const Deadline deadline = Deadline::after(kPatience);
  while (!has_run()) ASSERT_FALSE(deadline.has_expired());
  first.signal(SIGSTOP);

  ParameterServerStrategy strategy(cluster.resolver());
  std::optional<ClusterCoordinator> taken;
  while (!taken) {  // until it has stopped, its threads may answer
    try {
      taken.emplace(strategy);
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::failed_precondition) << error.what();
      ASSERT_FALSE(deadline.has_expired()) << error.what();
    }
  }
  ClusterCoordinator& coordinator = *taken;
  Variable sum = strategy.variable("sum", at::ones({}));
  Function step([&] { sum.assign_add(at::ones({})); });
  for (int i = 0; i < 10; ++i) coordinator.schedule(step);
  EXPECT_TRUE(coordinator.join(kPatience));
  EXPECT_EQ(sum.read().item<float>(), 11);
}

}  // namespace
}  // namespace cohort
