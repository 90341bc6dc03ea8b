// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/health_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "cohort/rpc/control.h"
#include "cohort/testing/channel_fixture.h"
#include "cohort/testing/raw_socket.h"
#include "cohort/testing/throws_error.h"

namespace cohort::rpc {
namespace {

using cohort::testing::patience;
using cohort::testing::Promised;
using cohort::testing::RawSocket;
using ::testing::HasSubstr;
using State = ProbeResult::State;

// Implements only the health call.
class HealthyTask final : public ControlService {
 public:
  explicit HealthyTask(std::string task) : task_(std::move(task)) {}

  HandshakeReply handshake(const HandshakeRequest&, const Caller&) override { refuse(); }
  std::shared_ptr<CoordinatorSession> session_of(const Caller&) override { refuse(); }
  void shutdown(const Caller&, std::chrono::milliseconds) override { refuse(); }
  bool is_of_job(const std::string& job_id) const override { return job_id == "job"; }
  TaskHealth health() override {
    entered.set(true);
    if (is_gated) gate.wait();
    if (is_ending) throw Error(ErrorCode::unavailable, "it ends", ErrorCause::peer_lost);
    TaskHealth health{.incarnation = 7};
    health.task = task_;
    health.last_error = TaskError{.code = ErrorCode::data_loss,
                                  .cause = ErrorCause::application,
                                  .age = std::chrono::seconds(3),
                                  .origin = "ps:0",
                                  .text = "bad image of Ada"};
    return health;
  }

  Promised<bool> entered;
  Promised<bool> gate;
  std::atomic<bool> is_gated{false};
  std::atomic<bool> is_ending{false};

 private:
  [[noreturn]] static void refuse() { throw Error(ErrorCode::unimplemented, "health alone"); }
  const std::string task_;
};

class HealthProbeTest : public ::testing::Test {
 protected:
  static ProbeResult probe(const std::string& expected, const std::string& address,
                           const std::string& job_id = "job", Deadline deadline = patience()) {
    return probe_health({{expected, address}}, job_id, deadline).at(0);
  }

  HealthyTask task{"ps:1"};
  std::unique_ptr<ControlServer> server = serve_control("127.0.0.1:0", task);
};

TEST_F(HealthProbeTest, ATaskThatAnswersGivesItsHealth) {
  const ProbeResult result = probe("ps:1", server->address());
  EXPECT_EQ(result.state, State::answers) << result.reason;
  EXPECT_EQ(result.health.incarnation, 7U);
  ASSERT_TRUE(result.health.last_error);
  EXPECT_EQ(result.health.last_error->text, "bad image of Ada");
  EXPECT_EQ(result.health.last_error->origin, "ps:0");
}

// Texts may contain parts of a program or its data, which not everybody who reaches the port may
// read.
TEST_F(HealthProbeTest, WhoDoesNotNameTheJobReadsNoTexts) {
  const ProbeResult result = probe("", server->address(), "");
  EXPECT_EQ(result.state, State::answers) << result.reason;
  EXPECT_EQ(result.health.task, "");
  ASSERT_TRUE(result.health.last_error);
  EXPECT_EQ(result.health.last_error->code, ErrorCode::data_loss);
  EXPECT_EQ(result.health.last_error->cause, ErrorCause::application);
  EXPECT_EQ(result.health.last_error->age, std::chrono::seconds(3));
  EXPECT_EQ(result.health.last_error->text, "");
  EXPECT_EQ(result.health.last_error->origin, "");
}

TEST_F(HealthProbeTest, ATaskOfAnotherJobIsAStranger) {
  const ProbeResult result = probe("ps:1", server->address(), "another");
  EXPECT_EQ(result.state, State::stranger);
  EXPECT_THAT(result.reason, HasSubstr("of another job"));
}

TEST_F(HealthProbeTest, AnotherTaskIsAStranger) {
  const ProbeResult result = probe("worker:0", server->address());
  EXPECT_EQ(result.state, State::stranger);
  EXPECT_EQ(result.reason, "ps:1 of this job answers at the address of worker:0");
}

TEST_F(HealthProbeTest, WhereNobodyListensThatIsSaid) {
  std::string free;
  {
    RawSocket socket;
    free = socket.listen();
  }
  const ProbeResult result = probe("ps:1", free);
  EXPECT_EQ(result.state, State::nobody_listens);
  EXPECT_THAT(result.reason, HasSubstr(free));
}

TEST_F(HealthProbeTest, SilenceIsNoAnswer) {
  RawSocket silent;
  const ProbeResult result =
      probe("ps:1", silent.listen(), "job", Deadline::after(std::chrono::milliseconds(200)));
  EXPECT_EQ(result.state, State::no_answer);
  EXPECT_THAT(result.reason, HasSubstr("somebody listens"));
}

TEST_F(HealthProbeTest, AHostThatTakesNoConnectionIsNoAnswer) {
  const testing::DeadAddress dead;
  EXPECT_EQ(
      probe("ps:1", dead.address(), "job", Deadline::after(std::chrono::milliseconds(200))).state,
      State::no_answer);
}

TEST_F(HealthProbeTest, ATaskThatEndsSaysSo) {
  task.is_ending = true;
  const ProbeResult result = probe("ps:1", server->address());
  EXPECT_EQ(result.state, State::no_answer);
  EXPECT_EQ(result.reason, "it ends");
}

TEST_F(HealthProbeTest, AnotherProgramIsAStranger) {
  RawSocket web;
  const std::string address = web.listen();
  std::thread server_thread([&] {
    RawSocket caller = web.accepted();
    caller.write("HTTP/1.1 400 Bad Request\r\n\r\n");
  });
  const ProbeResult result = probe("ps:1", address);
  server_thread.join();
  EXPECT_EQ(result.state, State::stranger) << result.reason;
  EXPECT_THAT(result.reason, HasSubstr("no Cohort task"));
}

TEST_F(HealthProbeTest, AllAreAskedAtOnce) {
  HealthyTask other("ps:0");
  const auto second = serve_control("127.0.0.1:0", other);
  task.is_gated = other.is_gated = true;
  std::thread answers([&] {
    task.entered.wait();
    other.entered.wait();  // both before any has answered
    task.gate.set(true);
    other.gate.set(true);
  });
  const auto results =
      probe_health({{"ps:0", second->address()}, {"ps:1", server->address()}}, "job", patience());
  answers.join();
  EXPECT_EQ(results.at(0).health.task, "ps:0");
  EXPECT_EQ(results.at(1).health.task, "ps:1");
}

TEST_F(HealthProbeTest, AWrongAddressIsRefused) {
  EXPECT_THAT([&] { probe("ps:1", "nowhere"); },
              testing::throws_error(ErrorCode::invalid_argument, "\"nowhere\""));
}

}  // namespace
}  // namespace cohort::rpc
