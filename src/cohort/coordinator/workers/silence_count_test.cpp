// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/workers/worker_silence.h"

#include <gtest/gtest.h>

namespace cohort::coordinator::internal {
namespace {

TEST(SilenceCount, TwoInARowAreTooMany) {
  SilenceCount count;
  EXPECT_FALSE(count.add(1, true));
  EXPECT_TRUE(count.add(1, true));
  EXPECT_FALSE(count.add(1, true)) << "starts again";
}

TEST(SilenceCount, AnAnswerBeginsAgain) {
  SilenceCount count;
  EXPECT_FALSE(count.add(1, true));
  EXPECT_FALSE(count.add(1, false));
  EXPECT_FALSE(count.add(1, true));
}

// Regression: a restarted worker that was slow once lost its new connection.
TEST(SilenceCount, ANewConnectionIsNotBlamedForTheLastOne) {
  SilenceCount count;
  EXPECT_FALSE(count.add(1, true));
  EXPECT_FALSE(count.add(2, true));
  EXPECT_TRUE(count.add(2, true));
}

}  // namespace
}  // namespace cohort::coordinator::internal
