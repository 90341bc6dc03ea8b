// SPDX-License-Identifier: Apache-2.0
// A server that serves another coordinator tells the old one, which then ends.
#include <gtest/gtest.h>

#include "cohort/testing/coordinator_fixture.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::patience;
using testing::throws_error;

using TakenPlace = testing::CoordinatorFixture;

// Regression: the coordinator waited for its worker, which no other coordinator had taken.
TEST_F(TakenPlace, AParameterServerThatAnotherCoordinatorTookEndsThisOne) {
  worker.answers = false;
  ClusterCoordinator coordinator(strategy());
  const RemoteValue result = coordinator.schedule(nothing);
  ASSERT_TRUE(worker.await_closures(1));
  ps.take_place();
  const auto is_refused = throws_error(ErrorCode::aborted, "another coordinator took its place");
  EXPECT_THAT([&] { coordinator.join(std::chrono::seconds(60)); }, is_refused);
  EXPECT_THAT([&] { coordinator.schedule(nothing); }, is_refused);
  EXPECT_THAT([&] { result.fetch(patience()); }, is_refused);
}

// Regression: the coordinator called the worker once more to learn it.
TEST_F(TakenPlace, AWorkerThatAnotherCoordinatorTookEndsThisOne) {
  worker.answers = false;
  ClusterCoordinator coordinator(strategy());
  coordinator.schedule(nothing);
  ASSERT_TRUE(worker.await_closures(1));
  worker.take_place();
  EXPECT_THAT([&] { coordinator.join(std::chrono::seconds(60)); },
              throws_error(ErrorCode::aborted, "another coordinator took its place"));
  EXPECT_FALSE(worker.has_hellos(2));
}

// Regression: it took both tasks at once, so two that started together could take one each, and
// then both ended.
TEST_F(TakenPlace, TheFirstTaskIsTakenBeforeAnyOther) {
  std::atomic<bool> has_first = false;
  ps.on_handshake = [](const rpc::HandshakeRequest& request) {
    EXPECT_FALSE(request.has_first_task);
  };
  worker.on_handshake = [&](const rpc::HandshakeRequest& request) {
    has_first = request.has_first_task && ps.has_hellos(1);
  };
  const ClusterCoordinator coordinator(strategy());
  EXPECT_TRUE(has_first);
}

TEST_F(TakenPlace, WhoIsRefusedTheFirstTaskTakesNoOther) {
  ps.on_handshake = [](const rpc::HandshakeRequest&) { throw rpc::replaced_error("ps:0"); };
  worker.on_handshake = [&](const rpc::HandshakeRequest&) { ++asked; };
  EXPECT_THAT([&] { const ClusterCoordinator coordinator(strategy()); },
              throws_error(ErrorCode::aborted, "another coordinator took its place"));
  EXPECT_EQ(asked, 0);
}

}  // namespace
}  // namespace cohort
