// SPDX-License-Identifier: Apache-2.0
// How the bytes of arguments limit the queue of a coordinator.
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "cohort/coordinator/runtime/runtime.h"
#include "cohort/testing/coordinator_fixture.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using coordinator::Runtime;
using testing::throws_error;

class QueueBytes : public testing::CoordinatorFixture {
 protected:
  std::shared_ptr<Runtime> start(const CoordinatorOptions& options) {
    auto runtime = std::make_shared<Runtime>(strategy(), options, CoordinatorNumbers());
    runtime->start();
    return runtime;
  }
};

// Regression: the queue counted closures only, so few large ones filled the memory.
TEST_F(QueueBytes, AScheduleWaitsForRoomForTheBytesOfItsArguments) {
  worker.answers = false;
  const auto runtime = start({.queue_bytes = 10'000, .in_flight_per_worker = 8});
  const auto large = [&] { return std::vector<Nest>{Nest(at::ones({1'500}))}; };  // 6,000 bytes
  const Function takes_one = Function::registered("nothing");
  runtime->schedule(takes_one, large());
  std::atomic<bool> is_queued = false;
  std::thread other([&] {
    EXPECT_NO_THROW(runtime->schedule(takes_one, large()));
    is_queued = true;
  });
  ASSERT_TRUE(worker.await_closures(1));
  EXPECT_FALSE(runtime->join(std::chrono::milliseconds(1)));
  EXPECT_FALSE(is_queued) << "there is room for one of them";
  EXPECT_EQ(runtime->pending_count(), 1U);
  worker.end({{.closure_id = 1}});
  other.join();
  ASSERT_TRUE(worker.await_closures(2));
  worker.end({{.closure_id = 2}});
  EXPECT_TRUE(runtime->join(std::chrono::seconds(60)));
}

TEST_F(QueueBytes, AClosureAboveTheLimitOfBytesRunsAlone) {
  worker.answers = false;
  const auto runtime = start({.queue_bytes = 1'000,
                              .in_flight_per_worker = 8,
                              .progress_timeout = std::chrono::milliseconds(50)});
  const auto large = [&] { return std::vector<Nest>{Nest(at::ones({1'500}))}; };
  runtime->schedule(nothing, large());
  EXPECT_THAT([&] { runtime->schedule(nothing, large()); },
              throws_error(ErrorCode::deadline_exceeded, "CoordinatorOptions::progress_timeout"));
  EXPECT_EQ(runtime->pending_count(), 1U);
  ASSERT_TRUE(worker.await_closures(1));
  worker.end({{.closure_id = 1}});
  ASSERT_TRUE(await([&] { return runtime->pending_count() == 0; }));
  runtime->schedule(nothing, large());
  ASSERT_TRUE(worker.await_closures(2));
  worker.end({{.closure_id = 2}});
  EXPECT_TRUE(runtime->join(std::chrono::seconds(60)));
}

TEST_F(QueueBytes, ArgumentsLargerThanTheMemoryAreRefused) {
  const auto runtime = start({});
  const at::Tensor wide = at::ones({1}).expand({std::int64_t{1} << 50});
  EXPECT_THAT([&] { runtime->schedule(nothing, {Nest(wide)}); },
              throws_error(ErrorCode::resource_exhausted, "got 4503599627370496 bytes"));
  EXPECT_EQ(runtime->pending_count(), 0U);
}

}  // namespace
}  // namespace cohort
