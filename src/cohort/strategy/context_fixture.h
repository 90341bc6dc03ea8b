// SPDX-License-Identifier: Apache-2.0
// Checks of the current context, for tests.
#pragma once

#include <gtest/gtest.h>

#include "cohort/core/error.h"
#include "cohort/strategy/strategy.h"
#include "cohort/testing/error_of.h"

namespace cohort::testing {

// Checks after each test that the default context is restored.
class ContextFixture : public ::testing::Test {
 protected:
  ~ContextFixture() override { expect_default(); }
  static void expect_default() {
    EXPECT_EQ(&get_strategy(), &default_strategy());
    EXPECT_FALSE(has_strategy());
    EXPECT_FALSE(in_cross_replica_context());
    ASSERT_NE(get_replica_context(), nullptr);
    EXPECT_EQ(get_replica_context()->replica_id_in_sync_group(), 0);
  }
  static void expect_cross(const Strategy& strategy) {
    EXPECT_EQ(&get_strategy(), &strategy);
    EXPECT_TRUE(has_strategy());
    EXPECT_TRUE(in_cross_replica_context());
    EXPECT_EQ(get_replica_context(), nullptr);
  }
  template <class F>
  static ErrorCode code_of(F&& call) {
    return testing::code_of(call);
  }
};

}  // namespace cohort::testing
