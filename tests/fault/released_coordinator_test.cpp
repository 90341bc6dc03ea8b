// SPDX-License-Identifier: Apache-2.0
// A coordinator that is released leaves no thread of its own, also after a server was lost.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/testing/cluster/test_cluster.h"

namespace cohort {
namespace {

using testing::TestCluster;

std::string name_in(const std::filesystem::path& file) {
  std::string name;
  std::getline(std::ifstream(file), name);
  return name;
}

// Counts the threads that have the program's name. Threads of gRPC have names of their own; some of
// them serve the whole process and stay.
std::ptrdiff_t threads() {
  const std::string own = name_in("/proc/self/comm");
  const std::filesystem::directory_iterator all("/proc/self/task");
  return std::count_if(begin(all), end(all), [&](const std::filesystem::directory_entry& thread) {
    return name_in(thread.path() / "comm") == own;
  });
}

bool await(const std::function<bool()>& is_so) {
  const Deadline deadline = Deadline::after(std::chrono::seconds(60));
  while (!is_so()) {
    if (deadline.has_expired()) return false;
    std::this_thread::yield();
  }
  return true;
}

// A coordinator with all that a program keeps of it.
struct Job {
  explicit Job(const TestCluster& cluster)
      : strategy(cluster.resolver()),
        coordinator(strategy),
        count(strategy.variable("count", torch::zeros({}))) {
    const Function step([&] { count.assign_add(torch::ones({})); });
    for (int i = 0; i < 10; ++i) coordinator.schedule(step);
    coordinator.join();
  }

  ParameterServerStrategy strategy;
  ClusterCoordinator coordinator;
  Variable count;
};

class ReleasedCoordinator : public ::testing::Test {
 protected:
  // The threads that LibTorch starts once are there after the first job.
  void SetUp() override { Job{cluster}; }

  TestCluster cluster{{.workers = 2, .ps = 1, .command = {COHORT_COMMAND, "server"}}};
};

// FLT-17
TEST_F(ReleasedCoordinator, LeavesNoThread) {
  const std::ptrdiff_t before = threads();
  for (int round = 0; round < 3; ++round) {
    std::optional<Job> job(cluster);
    EXPECT_GT(threads(), before) << "no thread is counted that the coordinator has";
    job.reset();
    EXPECT_TRUE(await([&] { return threads() <= before; })) << threads() << " of " << before;
  }
}

// FLT-14
TEST_F(ReleasedCoordinator, LeavesNoThreadAfterAReadWhoseServerWasKilled) {
  const std::ptrdiff_t before = threads();
  std::optional<Job> job(cluster);
  cluster.kill("ps:0");
  try {
    job->count.read();
    ADD_FAILURE() << "the read succeeds";
  } catch (const Error& error) {
    EXPECT_TRUE(error.code() == ErrorCode::unavailable || error.code() == ErrorCode::aborted)
        << error.what();
    EXPECT_EQ(error.origin(), "ps:0");
  }
  job.reset();
  EXPECT_TRUE(await([&] { return threads() <= before; })) << threads() << " of " << before;
}

}  // namespace
}  // namespace cohort
