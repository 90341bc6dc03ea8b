// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/thread_room.h"

#include <gtest/gtest.h>

#include <atomic>

#include "cohort/core/error.h"
#include "cohort/testing/throws_error.h"

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

}  // namespace
}  // namespace cohort::rpc
