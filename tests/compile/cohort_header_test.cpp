// SPDX-License-Identifier: Apache-2.0
// A program that includes cohort.h alone has complete types of what the methods of its objects
// return.
#include "cohort/cohort.h"

#include <gtest/gtest.h>

namespace cohort {
namespace {

TEST(CohortHeader, HasThePartsOfAStrategyThatLibrariesUse) {
  OneDeviceStrategy strategy;
  EXPECT_FALSE(strategy.extended().in_multi_worker_mode());
  EXPECT_TRUE(default_strategy().extended().should_init());
}

}  // namespace
}  // namespace cohort
