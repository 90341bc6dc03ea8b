// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/replica_count.h"

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "cohort/testing/throws_error.h"
#include "cohort/variable/variable.h"

namespace cohort {
namespace {

using testing::throws_error;
using variable::ReplicaCount;

// Regression: each replica's value overwrote the one before.
TEST(ReplicaCount, AssignmentsOfSeveralReplicasAreRefused) {
  Variable w = local_variable("w", at::ones({2}));
  const at::Tensor value = at::ones({2});
  const ReplicaCount replicas(3);
  const auto is_refused = throws_error(ErrorCode::unimplemented, "a replica context of 3 replicas");
  EXPECT_THAT([&] { w.assign(value); }, is_refused);
  EXPECT_THAT([&] { w.assign_add(value); }, is_refused);
  EXPECT_THAT([&] { w.assign_sub(value); }, is_refused);
  EXPECT_TRUE(w.read().equal(value)) << "nothing was written";
}

TEST(ReplicaCount, EndsWithItsObjectAndItsThread) {
  Variable w = local_variable("w", at::ones({2}));
  {
    const ReplicaCount outer(2);
    {
      const ReplicaCount inner(1);
      w.assign_add(at::ones({2}));
    }
    EXPECT_EQ(ReplicaCount::current(), 2);
    std::thread([] { EXPECT_EQ(ReplicaCount::current(), 1); }).join();
  }
  w.assign_add(at::ones({2}));
  EXPECT_EQ(w.read()[0].item().toInt(), 3);
}

TEST(ReplicaCount, KnowsWhetherAReplicaHasScaledItsLoss) {
  const ReplicaCount outer(2);
  EXPECT_FALSE(ReplicaCount::is_scaled());
  ReplicaCount::note_scaled();
  {
    const ReplicaCount inner(2);
    EXPECT_FALSE(ReplicaCount::is_scaled());
  }
  EXPECT_TRUE(ReplicaCount::is_scaled());
}

}  // namespace
}  // namespace cohort
