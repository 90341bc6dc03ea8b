// SPDX-License-Identifier: Apache-2.0
// Coordinators that stop responding while a job runs, and their successors.
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

// If a chief's machine is lost or the chief is stopped, its connections stay open until TCP gives
// up after half a minute. All that time servers refused the chief's next start.
TEST_F(ChiefLossTest, TheNextStartTakesThePlaceOfASilentChief) {
  const testing::TestCluster cluster(
      {.workers = 1, .ps = 1, .command = {COHORT_COMMAND, "server"}, .data_dirs = {kDigits}});
  testing::RunningProgram first(
      {EXAMPLE_PROGRAM, "--data", "digits", "--data-dir", kDigits, "--epochs", "100000"},
      {{"TF_CONFIG", cluster.tf_config("chief:0")}});
  const auto has_run = [&] {
    try {
      return cluster.health("worker:0").closures_run > 0;
    } catch (const Error&) {  // the worker is still starting
      return false;
    }
  };
  const Deadline deadline = Deadline::after(kPatience);
  while (!has_run()) ASSERT_FALSE(deadline.has_expired());
  first.signal(SIGSTOP);

  ParameterServerStrategy strategy(cluster.resolver());
  std::optional<ClusterCoordinator> taken;
  while (!taken) {  // threads of the first chief may answer for a while after SIGSTOP
    try {
      taken.emplace(strategy);
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::aborted) << error.what();
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
