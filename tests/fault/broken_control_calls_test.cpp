// SPDX-License-Identifier: Apache-2.0
// Flipped bits in the control calls of workers: functions that capture constants, and pipelines
// whose data is in memory.
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/faulty_proxy.h"
#include "cohort/testing/test_seed.h"

namespace cohort {
namespace {

using testing::Fault;
using testing::FaultyProxy;
using testing::TestCluster;

constexpr auto kPatience = std::chrono::seconds(60);
constexpr std::int64_t kConstants = 2000;
constexpr std::int64_t kElements = 1000;
constexpr int kClosures = 6;  // per round
constexpr const char* kJob = "broken_control_calls";

int rounds() {
  const char* text = std::getenv("COHORT_TEST_ROUNDS");
  return text == nullptr ? 25 : std::atoi(text);
}

// Two workers behind proxies, and a parameter server.
class BrokenControlCallsTest : public ::testing::Test {
 protected:
  BrokenControlCallsTest() {
    random.seed(seed.value());
    for (std::size_t i = 0; i < proxies.size(); ++i) {
      proxies[i].set_target(cluster.spec().task_address("worker", static_cast<int>(i)));
    }
    strategy = std::make_unique<ParameterServerStrategy>(
        cluster.resolver(), ParameterServerOptions{.cluster = {.timeout = std::chrono::seconds(5),
                                                               .data_timeout = kPatience,
                                                               .job_id = kJob}});
    coordinator = std::make_unique<ClusterCoordinator>(
        *strategy, CoordinatorOptions{.max_transient_timeouts = 1'000'000,
                                      .heartbeat = std::chrono::seconds(1)});
  }

  static std::map<std::string, std::string> addresses_of(
      const std::array<FaultyProxy, 2>& proxies) {
    return {{"worker:0", proxies[0].address()}, {"worker:1", proxies[1].address()}};
  }
  void arm() {
    proxies[random() % proxies.size()].arm({.direction = Fault::Direction(random() % 2),
                                            .part = Fault::Part::piece,
                                            .random = random()});
  }
  // A new function and a new pipeline, which are sent to the workers while a bit is flipped.
  void run_round(int round) {
    const at::Tensor constants = at::full({kConstants}, round + 1, at::kDouble);
    const at::Tensor data = at::arange(kElements, at::kDouble).add(round);
    const Function step([&constants](Iterator& it) {
      const at::Tensor batch = it.next<at::Tensor>();
      return batch.sum().add(constants.sum());
    });
    arm();
    auto dataset = coordinator->create_per_worker_dataset(
        Dataset::from_tensor_slices(data).batch(kElements).repeat());
    const PerWorkerIterator iterator = dataset.iterator();
    arm();
    std::vector<RemoteValue> results;
    for (int i = 0; i < kClosures; ++i) results.push_back(coordinator->schedule(step, iterator));
    ASSERT_TRUE(coordinator->join(kPatience)) << "the run hangs";
    const double expected = data.sum().item<double>() + constants.sum().item<double>();
    for (const RemoteValue& result : results) {
      ASSERT_EQ(result.fetch().tensor().item<double>(), expected) << "a wrong number";
    }
  }

  const testing::TestSeed seed;
  std::mt19937_64 random;
  std::array<FaultyProxy, 2> proxies;
  TestCluster cluster{{.workers = 2,
                       .ps = 1,
                       .command = {COHORT_COMMAND, "server", "--job-id", kJob},
                       .proxies = addresses_of(proxies)}};
  std::unique_ptr<ParameterServerStrategy> strategy;
  std::unique_ptr<ClusterCoordinator> coordinator;
};

// Regression: gRPC has no checksum, so captured constants and the data of pipelines arrived with
// other values, and the results were wrong without a word.
TEST_F(BrokenControlCallsTest, ResultsAreExactOrAnErrorNamesTheWorker) {
  int exact = 0;
  for (int round = 0; round < rounds(); ++round) {
    SCOPED_TRACE("round " + std::to_string(round) + "; " + seed.text());
    try {
      ASSERT_NO_FATAL_FAILURE(run_round(round));
      ++exact;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("worker:"), std::string::npos) << error.what();
      std::cout << "round " << round << ": " << error.what() << "\n";
    }
  }
  EXPECT_GT(exact, 0);
  std::cout << exact << " of " << rounds() << " rounds were exact\n";
}

}  // namespace
}  // namespace cohort
