// SPDX-License-Identifier: Apache-2.0
#include "cohort/replicas/compute_share.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "cohort/strategy/synchronous_strategy.h"

namespace cohort::internal {
namespace {

using ::testing::Each;

// The number of threads that each replica sees.
std::vector<int> threads_seen(Strategy& strategy) {
  std::vector<int> seen(static_cast<std::size_t>(strategy.num_replicas_in_sync()));
  strategy.run([&] {
    seen[static_cast<std::size_t>(get_replica_context()->local_replica_id())] =
        at::get_num_threads();
  });
  return seen;
}

struct ComputeShareTest : ::testing::Test {
  ~ComputeShareTest() override { at::set_num_threads(before); }
  const int before = at::get_num_threads();
};

TEST_F(ComputeShareTest, ReplicasDivideTheThreadsOfTheCaller) {
  at::set_num_threads(8);
  MirroredStrategy two({"CPU:0", "CPU:1"});
  for (int repeat = 0; repeat < 3; ++repeat) EXPECT_THAT(threads_seen(two), Each(4));
  EXPECT_EQ(at::get_num_threads(), 8);
  at::set_num_threads(2);
  EXPECT_THAT(threads_seen(two), Each(1));
  EXPECT_EQ(at::get_num_threads(), 2);
}

TEST_F(ComputeShareTest, ThereIsAlwaysOneThread) {
  at::set_num_threads(2);
  MirroredStrategy three({"CPU:0", "CPU:1", "CPU:2"});
  EXPECT_THAT(threads_seen(three), Each(1));
}

TEST_F(ComputeShareTest, OneReplicaUsesAllThreads) {
  at::set_num_threads(5);
  MirroredStrategy one({"CPU:0"});
  EXPECT_THAT(threads_seen(one), Each(5));
}

// The other replicas wait meanwhile.
TEST_F(ComputeShareTest, AMergeHasAllThreads) {
  at::set_num_threads(8);
  MirroredStrategy two({"CPU:0", "CPU:1"});
  two.run([&] {
    get_replica_context()->merge_call([&](Strategy&) {
      EXPECT_EQ(at::get_num_threads(), 8);
      EXPECT_THAT(threads_seen(two), Each(4));
    });
    EXPECT_EQ(at::get_num_threads(), 4);
  });
}

}  // namespace
}  // namespace cohort::internal
