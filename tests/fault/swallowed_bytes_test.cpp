// SPDX-License-Identifier: Apache-2.0
// A proxy or firewall between the hosts that drops all bytes of a connection, which stays open.
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/proxied_task.h"

namespace cohort {
namespace {

using testing::Fault;
using testing::ProxiedTask;
using testing::TestCluster;

constexpr auto kPatience = std::chrono::seconds(60);
constexpr const char* kJob = "swallowed_bytes";

// One worker and one parameter server, each behind a proxy.
class SwallowedBytesTest : public ::testing::TestWithParam<Fault::Direction> {
 protected:
  SwallowedBytesTest()
      : worker("worker:0"),
        ps("ps:0"),
        cluster({.command = {COHORT_COMMAND, "server", "--job-id", kJob},
                 .proxies = {{"worker:0", worker.address()}, {"ps:0", ps.address()}}}),
        strategy((worker.set_target(cluster.spec().task_address("worker", 0)),
                  ps.set_target(cluster.spec().task_address("ps", 0)), cluster.resolver()),
                 {.cluster = {.data_timeout = std::chrono::seconds(5), .job_id = kJob}}),
        coordinator(strategy, {.max_transient_timeouts = 1'000'000,
                               .heartbeat = std::chrono::milliseconds(500)}),
        sum(strategy.variable("sum", at::zeros({}))),
        step([this] { sum.assign_add(at::ones({})); }) {
    coordinator.schedule(step);
    coordinator.join();
  }
  void run_through(ProxiedTask& task) {
    task.data().arm({.kind = Fault::Kind::swallow, .direction = GetParam()});
    for (int i = 0; i < 10; ++i) coordinator.schedule(step);
    EXPECT_TRUE(coordinator.join(kPatience));
    EXPECT_TRUE(task.data().has_happened());
    EXPECT_EQ(sum.read().item<float>(), 11);
  }

  ProxiedTask worker, ps;
  TestCluster cluster;
  ParameterServerStrategy strategy;
  ClusterCoordinator coordinator;
  Variable sum;
  Function step;
};

// The coordinator waited for its progress timeout.
TEST_P(SwallowedBytesTest, BetweenCoordinatorAndWorkerTheWorkerIsLostAndComesBack) {
  run_through(worker);
}

// Not noticed by heartbeats, but by the data timeout.
TEST_P(SwallowedBytesTest, BetweenWorkerAndParameterServerTheDataTimeoutEndsTheConnection) {
  run_through(ps);
}

INSTANTIATE_TEST_SUITE_P(BothWays, SwallowedBytesTest,
                         ::testing::Values(Fault::Direction::to_server,
                                           Fault::Direction::to_client));

}  // namespace
}  // namespace cohort
