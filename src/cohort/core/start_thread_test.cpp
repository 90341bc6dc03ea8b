// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/start_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohort/testing/throws_error.h"
#include "cohort/testing/without_threads.h"

namespace cohort {
namespace {

TEST(StartThread, RunsTheBody) {
  bool has_run = false;
  start_thread("to set a flag", [&] { has_run = true; }).join();
  EXPECT_TRUE(has_run);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The user only read "Resource temporarily unavailable".
TEST(StartThread, WithoutOneSaysWhatItWasForAndWhatHelps) {
  const testing::WithoutThreads none;
  const auto start = [] { start_thread("to set a flag", [] {}).join(); };
  EXPECT_THAT(start, testing::throws_error(ErrorCode::resource_exhausted,
                                           "cannot start a thread to set a flag: Resource"));
  EXPECT_THAT(start, testing::throws_error(ErrorCode::resource_exhausted, "ulimit -u"));
}
#endif

}  // namespace
}  // namespace cohort
