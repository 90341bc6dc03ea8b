// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/descriptor_room.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohort/testing/throws_error.h"
#include "cohort/testing/without_descriptors.h"

namespace cohort::rpc {
namespace {

TEST(DescriptorRoom, IsThereAndStaysThere) {
  const testing::WithoutDescriptors room(3);
  EXPECT_NO_THROW(check_descriptor_room(3));
  EXPECT_NO_THROW(check_descriptor_room(3));
}

// Regression: gRPC aborted the process, and a server could not accept its coordinator's
// connections.
TEST(DescriptorRoom, TooLittleNamesTheLimit) {
  const testing::WithoutDescriptors room(2);
  const auto check = [] { check_descriptor_room(3); };
  EXPECT_THAT(check, testing::throws_error(ErrorCode::resource_exhausted, "room for 3 more"));
  EXPECT_THAT(check, testing::throws_error(ErrorCode::resource_exhausted, "ulimit -n"));
}

}  // namespace
}  // namespace cohort::rpc
