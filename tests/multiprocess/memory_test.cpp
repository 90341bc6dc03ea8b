// SPDX-License-Identifier: Apache-2.0
// Memory of servers and the chief is freed when it is not used any more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/testing/cluster/test_cluster.h"

namespace cohort {
namespace {

using testing::TestCluster;

bool await(const std::function<bool()>& is_so) {
  const Deadline deadline = Deadline::after(std::chrono::seconds(60));
  while (!is_so()) {
    if (deadline.has_expired()) return false;
    std::this_thread::yield();
  }
  return true;
}

// The resident memory of this process.
std::int64_t resident_mib() {
  std::ifstream status("/proc/self/status");
  constexpr const char* kName = "VmRSS:";
  for (std::string word; status >> word;) {
    std::int64_t kib = 0;
    if (word == kName && status >> kib) return kib >> 10;
  }
  ADD_FAILURE() << "no " << kName;
  return 0;
}

class Memory : public ::testing::Test {
 protected:
  std::uint64_t stored(const std::string& task = "ps:0") {
    return cluster.health(task).variable_bytes;
  }
  TestCluster cluster{{.workers = 2, .ps = 2, .command = {COHORT_COMMAND, "server"}}};
};

// Regression: four variables of 100 MB stayed on their servers after they were dropped, and their
// names stayed taken.
TEST_F(Memory, VariablesThatAreDroppedLeaveServersAndChief) {
  ParameterServerStrategy strategy(cluster.resolver());
  const std::int64_t before = resident_mib();
  for (int round = 0; round < 2; ++round) {
    std::vector<Variable> large;
    for (const char* name : {"a", "b", "c", "d"})
      large.push_back(strategy.variable(name, torch::full({25'000'000}, 1.0 * round)));
    EXPECT_EQ(stored() + stored("ps:1"), 400'000'000U);
    EXPECT_TRUE(large[3].read().eq(round).all().item<bool>());
  }
  EXPECT_TRUE(await([&] { return stored() + stored("ps:1") == 0; }));
  EXPECT_TRUE(await([&] { return resident_mib() < before + 150; })) << resident_mib();
}

// A program keeps the variables that it uses until the coordinator forgets it, here by join().
TEST_F(Memory, ATableThatIsDroppedLeavesItsServersAndItsNameIsFree) {
  ParameterServerStrategy strategy(cluster.resolver());
  ClusterCoordinator coordinator(strategy);
  const at::Tensor keys = torch::arange(10'000);
  const EmbeddingTableOptions options{.dim = 16, .initializer = Initializer::zeros()};
  for (int round = 0; round < 2; ++round) {
    const EmbeddingTable table = strategy.embedding_table("users", options);
    const Optimizer optimizer = SGD({table.variable()}, {.learning_rate = 1.0});
    const Function step([=](at::Tensor rows) { optimizer.minimize(table.lookup(rows).sum()); });
    EXPECT_EQ(table.size(), 0);
    coordinator.schedule(step, keys);
    coordinator.join();
    EXPECT_EQ(table.size(), 10'000);
    EXPECT_EQ(stored() + stored("ps:1"), 640'000U);
    EXPECT_TRUE(table.lookup(keys).eq(-1).all().item<bool>());
  }
  coordinator.join();
  EXPECT_TRUE(await([&] { return stored() + stored("ps:1") == 0; }));
}

// The optimizer has slots on the servers, and a new variable of the name must not meet them.
TEST_F(Memory, ANewVariableOfANameMeetsNothingOfTheOldOne) {
  ParameterServerStrategy strategy(cluster.resolver());
  ClusterCoordinator coordinator(strategy);
  for (int round = 0; round < 5; ++round) {
    const Variable w = strategy.variable("w", torch::zeros({4}));
    const Optimizer optimizer = SGD({w}, {.learning_rate = 1.0, .momentum = 0.5});
    const Function step([=] { optimizer.minimize(w.tensor().sum()); });
    for (int i = 0; i < 3; ++i) {
      coordinator.schedule(step);
      coordinator.join();
    }
    // Steps of 1, 1.5 and 1.75.
    EXPECT_TRUE(w.read().eq(-4.25).all().item<bool>()) << w.read();
  }
}

TEST_F(Memory, AVariableIsKeptForTheClosuresThatUseIt) {
  ParameterServerStrategy strategy(cluster.resolver());
  ClusterCoordinator coordinator(strategy);
  const Variable sum = strategy.variable("sum", torch::zeros({}));
  constexpr int kClosures = 200;
  {
    const Variable w = strategy.variable("w", torch::ones({1'000}));
    const Function step([=] { sum.assign_add(w.tensor().detach().sum()); });
    for (int i = 0; i < kClosures; ++i) coordinator.schedule(step);
  }
  coordinator.join();
  EXPECT_EQ(sum.read().item<float>(), 1'000.0F * kClosures);
  coordinator.join();
  EXPECT_TRUE(await([&] { return stored() + stored("ps:1") == sum.tensor().nbytes(); }));
}

TEST_F(Memory, AStrategyThatEndsLeavesNothingOnItsServers) {
  {
    ParameterServerStrategy strategy(cluster.resolver());
    const Variable w = strategy.variable("w", torch::ones({1'000}));
    EXPECT_GT(stored(), 0U);
  }
  EXPECT_TRUE(await([&] { return stored() == 0; }));
  ParameterServerStrategy next(cluster.resolver());
  const Variable w = next.variable("w", torch::full({1'000}, 2.0));
  EXPECT_TRUE(w.read().eq(2).all().item<bool>());
}

// Regression: the blocks of the last large messages stayed in each process.
TEST_F(Memory, BlocksOfLargeMessagesAreGivenBack) {
  ParameterServerStrategy strategy(cluster.resolver());
  const Variable w = strategy.variable("w", torch::ones({25'000'000}));
  const std::int64_t before = resident_mib();
  for (int i = 0; i < 3; ++i) w.read();
  EXPECT_TRUE(await([&] { return resident_mib() < before + 30; })) << resident_mib();
}

}  // namespace
}  // namespace cohort
