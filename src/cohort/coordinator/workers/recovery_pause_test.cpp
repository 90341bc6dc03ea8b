// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/workers/recovery_pause.h"

#include <gtest/gtest.h>

namespace cohort::coordinator::internal {
namespace {

using std::chrono::milliseconds;

TEST(RecoveryPause, DoublesUpToHalfAMinute) {
  RecoveryPause pause;
  for (const int expected : {500, 1000, 2000, 4000, 8000, 16000, 30000, 30000})
    EXPECT_EQ(pause.next(), milliseconds(expected));
}

TEST(RecoveryPause, BeginsAgainWhenTheWorkerWasUsable) {
  RecoveryPause pause;
  pause.next();
  pause.next();
  pause.reset();
  EXPECT_EQ(pause.next(), milliseconds(500));
}

}  // namespace
}  // namespace cohort::coordinator::internal
