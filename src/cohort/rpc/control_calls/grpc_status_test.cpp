// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/control_calls/grpc_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohort/testing/little_memory.h"
#include "cohort/testing/without_threads.h"

namespace cohort::rpc::internal {
namespace {

using ::testing::HasSubstr;

const grpc::Status kUnavailable(grpc::StatusCode::UNAVAILABLE, "failed to connect");
constexpr GrpcCall kCall{.task = "ps:1", .address = "127.0.0.1:1", .operation = "asking ps:1"};

TEST(GrpcStatus, WhoIsNotReachedIsUnavailable) {
  const Error error = error_of(kUnavailable, kCall);
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_EQ(error.origin(), "ps:1");
  EXPECT_THAT(error.message(), HasSubstr("is this its address?"));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they need more
// It was taken for a task that is not there: exit code 69.
TEST(GrpcStatus, WithoutAThreadTheTaskIsNotBlamed) {
  const cohort::testing::WithoutThreads none;
  const Error error = error_of(kUnavailable, kCall);
  EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
  EXPECT_EQ(exit_code_of(error), 75);
  EXPECT_EQ(error.origin(), "");
  EXPECT_THAT(error.message(), HasSubstr("ulimit -u"));
}

// "Cannot allocate memory; is the task running, and is this its address?"
TEST(GrpcStatus, WithoutAddressSpaceTheTaskIsNotBlamed) {
  const cohort::testing::LittleMemory little;
  const Error error = error_of(kUnavailable, kCall);
  EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
  EXPECT_EQ(error.origin(), "");
  EXPECT_THAT(error.message(), HasSubstr("ulimit -v"));
}
#endif

}  // namespace
}  // namespace cohort::rpc::internal
