// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/process_room.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "cohort/core/error.h"
#include "cohort/testing/throws_error.h"
#include "cohort/testing/without_descriptors.h"

namespace cohort::rpc {
namespace {

TEST(ThreadRoom, IsThereWhereAllStart) { EXPECT_NO_THROW(check_thread_room(kGrpcThreads)); }

// Regression: gRPC ended the process, or the process hung in LibTorch's pool or at gRPC's end.
TEST(ThreadRoom, IsMissingWhereOneDoesNotStartAndTheOthersEnd) {
  std::atomic<int> started = 0;
  const internal::StartThread start = [&](const std::function<void()>& body) {
    if (++started == 3) throw Error(ErrorCode::resource_exhausted, "no thread; raise ulimit -u");
    return std::thread(body);
  };
  EXPECT_THAT([&] { internal::check_thread_room(12, start); },
              testing::throws_error(ErrorCode::resource_exhausted,
                                    "room for 12 threads of LibTorch, gRPC and this task, got 2: "
                                    "no thread; raise ulimit -u"));
}

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
