// SPDX-License-Identifier: Apache-2.0
#include "cohort/testing/cluster/test_cluster.h"

#include <gtest/gtest.h>

#include <set>

#include "cohort/testing/throws_error.h"

namespace cohort::testing {
namespace {

// A port was free again before the next one was asked for, which could be the same.
TEST(TestCluster, EachTaskHasAPortOfItsOwn) {
  constexpr int kWorkers = 500;
  TestClusterOptions options{.workers = kWorkers, .ps = 0};
  for (int i = 0; i < kWorkers; ++i) options.not_started.push_back("worker:" + std::to_string(i));
  const TestCluster cluster(std::move(options));
  std::set<std::string> addresses;
  for (const std::int64_t i : cluster.spec().task_indices("worker"))
    addresses.insert(cluster.spec().task_address("worker", i));
  EXPECT_EQ(addresses.size(), std::size_t{kWorkers});
}

// Whoever connected waited for its whole deadline.
TEST(TestCluster, SaysThatThereIsNoSuchProgram) {
  EXPECT_THAT([] { TestCluster({.command = {"/no/such/program"}}); },
              throws_error(ErrorCode::not_found, "got '/no/such/program' (No such file"));
}

}  // namespace
}  // namespace cohort::testing
