// SPDX-License-Identifier: Apache-2.0
// Control calls over a connection that flips bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "cohort/core/error.h"
#include "cohort/core/mutex.h"
#include "cohort/rpc/control.h"
#include "cohort/rpc/health_probe.h"
#include "cohort/testing/channel_fixture.h"
#include "cohort/testing/faulty_proxy.h"

namespace cohort::rpc {
namespace {

using cohort::testing::Fault;
using cohort::testing::FaultyProxy;
using cohort::testing::patience;
using Direction = Fault::Direction;

constexpr std::uint64_t kCoordinator = 7;

FunctionBody function_with_constants() {
  FunctionBody body{.id = 3, .name = "step", .programs = {Bytes(2000)}};
  for (std::size_t i = 0; i < 2000; ++i) body.programs[0][i] = std::byte(i * 7);
  return body;
}

// Counts the arguments of its calls, and those of them that no client has sent. Thread-safe.
class CountingService final : public ControlService, public CoordinatorSession {
 public:
  HandshakeReply handshake(const HandshakeRequest&, const Caller&) override { return {}; }
  TaskHealth health() override {
    TaskHealth health{.incarnation = 5, .closures_run = 6};
    health.task = std::string(500, 'x');
    return health;
  }
  bool is_of_job(const std::string& /*job_id*/) const override { return true; }
  std::shared_ptr<CoordinatorSession> session_of(const Caller& caller) override {
    note(caller.coordinator_incarnation == kCoordinator);
    return {std::shared_ptr<void>(), this};
  }
  void shutdown(const Caller&, std::chrono::milliseconds) override { note(false); }
  void set_membership(const Membership&) override { note(false); }
  void place_variables(const Placement&) override { note(false); }
  void register_function(const FunctionBody& body) override {
    note(body.id == sent_.id && body.name == sent_.name && body.programs == sent_.programs);
  }
  void create_variables(const std::vector<VariableSpec>& /*variables*/) override { note(false); }
  void create_iterator(const IteratorSpec& iterator) override {
    note(iterator.id == 4 && iterator.dataset == sent_.programs[0] && iterator.seed == 9);
  }
  void release(const std::vector<std::uint64_t>& resources) override { note(resources.empty()); }

  int wrong() const {
    const Lock lock(mutex_);
    return wrong_;
  }
  int right() const {
    const Lock lock(mutex_);
    return right_;
  }

 private:
  void note(bool is_right) {
    const Lock lock(mutex_);
    ++(is_right ? right_ : wrong_);
  }

  const FunctionBody sent_ = function_with_constants();
  mutable Mutex mutex_;
  int right_ COHORT_GUARDED_BY(mutex_) = 0;
  int wrong_ COHORT_GUARDED_BY(mutex_) = 0;
};

class BrokenControlTest : public ::testing::TestWithParam<Direction> {
 protected:
  BrokenControlTest() { proxy.set_target(server->address()); }

  // A bit in each 37th byte of a piece of 3000 bytes, of which most are of the body.
  template <class Call>
  void flip_while(const Call& call) {
    for (std::uint64_t byte = 0; byte < 3000; byte += 37) {
      const Fault fault{
          .direction = GetParam(), .part = Fault::Part::piece, .random = 8 * byte + byte % 8};
      SCOPED_TRACE(to_string(fault));
      proxy.arm(fault);
      try {
        call(Deadline::after(std::chrono::milliseconds(300)));
        ++answered;
      } catch (const Error& error) {
        EXPECT_EQ(error.origin(), "worker:0") << error.what();
        EXPECT_TRUE(error.cause() == ErrorCause::peer_lost ||
                    error.code() == ErrorCode::deadline_exceeded)
            << error.what();
      }
    }
    proxy.disarm();
    EXPECT_EQ(service.wrong(), 0);
    EXPECT_GT(answered, 0);
  }

  // Makes a call without further faults. Earlier faults may have left bytes in the connection that
  // break one more call.
  template <class Call>
  static void call_at_last(const Call& call) {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.cause(), ErrorCause::peer_lost) << error.what();
      call();
    }
  }

  CountingService service;
  std::unique_ptr<ControlServer> server = serve_control("127.0.0.1:0", service);
  FaultyProxy proxy;
  std::unique_ptr<ControlClient> client = control_client(proxy.address(), "worker:0", kCoordinator);
  int answered = 0;
};

INSTANTIATE_TEST_SUITE_P(Directions, BrokenControlTest,
                         ::testing::Values(Direction::to_server, Direction::to_client),
                         [](const auto& one) {
                           return one.param == Direction::to_server ? "Requests" : "Answers";
                         });

// Regression: the constants that a program captures arrived with other values.
TEST_P(BrokenControlTest, NoFunctionArrivesWithOtherConstants) {
  client->health(patience());
  const FunctionBody body = function_with_constants();
  flip_while([&](Deadline deadline) { client->register_function(body, deadline); });
  call_at_last([&] { client->register_function(body, patience()); });
}

TEST_P(BrokenControlTest, NoIteratorArrivesWithOtherData) {
  client->health(patience());
  const IteratorSpec iterator{.id = 4, .dataset = function_with_constants().programs[0], .seed = 9};
  flip_while([&](Deadline deadline) { client->create_iterator(iterator, deadline); });
  call_at_last([&] { client->create_iterator(iterator, patience()); });
}

TEST_P(BrokenControlTest, NoHealthArrivesWithOtherNumbers) {
  flip_while([&](Deadline deadline) {
    const TaskHealth health = client->health(deadline);
    EXPECT_EQ(health.incarnation, 5U);
    EXPECT_EQ(health.closures_run, 6U);
  });
}

TEST_P(BrokenControlTest, NoProbeShowsOtherNumbers) {
  for (std::uint64_t byte = 0; byte < 1000; byte += 19) {
    proxy.arm({.direction = GetParam(), .part = Fault::Part::piece, .random = 8 * byte + byte % 8});
    const ProbeResult result = probe_health({{"", proxy.address()}}, "job",
                                            Deadline::after(std::chrono::milliseconds(300)))
                                   .at(0);
    if (result.state != ProbeResult::State::answers) continue;
    EXPECT_EQ(result.health.incarnation, 5U) << byte;
    EXPECT_EQ(result.health.task, std::string(500, 'x')) << byte;
    ++answered;
  }
  EXPECT_GT(answered, 0);
}

// A request that was refused as broken is sent again, over another connection.
TEST(ARefusedRequest, IsSentAgain) {
  CountingService service;
  const auto server = serve_control("127.0.0.1:0", service);
  FaultyProxy proxy;
  proxy.set_target(server->address());
  const auto client = control_client(proxy.address(), "worker:0", kCoordinator);
  client->health(patience());
  const FunctionBody body = function_with_constants();
  int sent_again = 0;
  for (std::uint64_t byte = 1000; byte < 1020; ++byte) {  // in the middle of the program
    proxy.arm({.part = Fault::Part::piece, .random = 8 * byte});
    try {
      client->register_function(body, patience());
      ++sent_again;
    } catch (const Error& error) {
      // The system split the bytes elsewhere, so that the bit was one of HTTP/2: then the call may
      // have run.
      EXPECT_EQ(error.cause(), ErrorCause::peer_lost) << error.what();
    }
  }
  EXPECT_GT(sent_again, 0);
  EXPECT_EQ(service.wrong(), 0);
}

}  // namespace
}  // namespace cohort::rpc
