// SPDX-License-Identifier: Apache-2.0
#include "cohort/replicas/replica_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <latch>
#include <string>
#include <thread>
#include <typeinfo>
#include <vector>

#include "cohort/core/log.h"

namespace cohort::internal {
namespace {

// A lock that a replica holds in a meeting, and another one waits for, would stop both for ever
// without a word.
TEST(ReplicaRun, LogsForWhomAReplicaWaits) {
  std::latch is_logged(1);
  std::string log;
  set_log_sink([&](LogLevel, std::string_view line) {
    log += line;
    is_logged.count_down();
  });
  ReplicaRun run(3, 4, std::chrono::milliseconds(10));
  const MergeOffer offer{.types = &typeid(void), .arguments = nullptr};
  const auto merge = [](const std::vector<const void*>&) { return std::shared_ptr<const void>(); };
  std::thread first([&] { run.meet(0, offer, merge); });
  std::thread last([&] {
    is_logged.wait();
    run.meet(2, offer, merge);
  });
  is_logged.wait();
  run.meet(1, offer, merge);
  first.join();
  last.join();
  set_log_sink({});
  EXPECT_THAT(log, ::testing::HasSubstr("replica 4 waits in a call in which replicas meet"));
  EXPECT_THAT(log, ::testing::HasSubstr("for replica 5, replica 6"));
}

}  // namespace
}  // namespace cohort::internal
