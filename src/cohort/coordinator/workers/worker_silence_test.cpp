// SPDX-License-Identifier: Apache-2.0
// Workers that answer control calls, over whose data channel nothing comes.
#include <gtest/gtest.h>

#include "cohort/coordinator/workers/worker_silence.h"
#include "cohort/testing/coordinator_fixture.h"

namespace cohort {
namespace {

using coordinator::internal::has_advanced;

constexpr auto kHeartbeat = std::chrono::milliseconds(200);

class WorkerSilence : public testing::CoordinatorFixture {};

// The job waited for the progress timeout, and the error named the closures.
TEST_F(WorkerSilence, AWorkerWhoseFramesAreDroppedIsLost) {
  worker.answers = false;
  ClusterCoordinator coordinator(strategy(), {.heartbeat = kHeartbeat});
  const RemoteValue value = coordinator.schedule(nothing);
  ASSERT_TRUE(worker.await_closures(1));
  worker.answers_pings = false;
  ASSERT_TRUE(worker.await_hellos(2)) << "no new connection";
  worker.answers_pings = true;
  worker.answers = true;
  worker.close_channels();  // also where the second connection was used before the hooks changed
  value.fetch(testing::patience());
}

TEST_F(WorkerSilence, AWorkerThatRunsALongStepIsNot) {
  worker.answers = false;
  ClusterCoordinator coordinator(strategy(), {.heartbeat = kHeartbeat});
  const RemoteValue value = coordinator.schedule(nothing);
  ASSERT_TRUE(worker.await_closures(1));
  ASSERT_TRUE(worker.await_pings(6));
  EXPECT_FALSE(worker.has_hellos(2));
  worker.end({{.closure_id = worker.closures().at(0).closure_id}});
  value.fetch(testing::patience());
}

TEST(ChannelProgress, ArrivedBytesAreASignOfLife) {
  EXPECT_TRUE(has_advanced({.received = 10}, {.received = 11}));
  EXPECT_FALSE(has_advanced({.received = 10}, {.received = 10}));
}

// The question waits behind a large frame.
TEST(ChannelProgress, SoIsALargeFrameThatAdvances) {
  EXPECT_TRUE(has_advanced({.delivered = 10, .underway = 90}, {.delivered = 20, .underway = 80}));
  EXPECT_FALSE(has_advanced({.delivered = 10, .underway = 90}, {.delivered = 10, .underway = 90}));
}

// A proxy takes what is sent, and drops it.
TEST(ChannelProgress, SoIsNotAFrameThatHasLeft) {
  EXPECT_FALSE(has_advanced({.delivered = 10, .underway = 0}, {.delivered = 20, .underway = 0}));
}

}  // namespace
}  // namespace cohort
