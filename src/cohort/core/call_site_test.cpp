// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/call_site.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cohort::internal {
namespace {

TEST(CallSite, IsTheCallOfTheUser) {
  EXPECT_EQ(CallSite::text(), "");
  {
    const CallSite outer("is in snapshot()", {"src/main.cpp", 41});
    const CallSite inner("is in read()");
    EXPECT_EQ(CallSite::text(), "is in snapshot() at main.cpp:41");
  }
  const CallSite without_place("is in reduce()");
  EXPECT_EQ(CallSite::text(), "is in reduce()");
}

}  // namespace
}  // namespace cohort::internal
