// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/server_links.h"

#include <gtest/gtest.h>

#include "cohort/parameter_server/store/fake_parameter_server.h"
#include "cohort/testing/raw_socket.h"
#include "cohort/testing/throws_error.h"

namespace cohort::parameter_server {
namespace {

using testing::RawSocket;
using testing::throws_error;

ServerLinks::Options options(Duration connect_timeout = std::chrono::milliseconds(1)) {
  return {.self = "worker:0",
          .connect =
              [connect_timeout](const rpc::Member& server, Duration patience,
                                const std::function<bool()>& should_stop) {
                return rpc::connect_task({.address = server.address,
                                          .task = server.task,
                                          .caller = rpc::identity_of_process("worker:0", "job", 3),
                                          .deadline = Deadline::after(connect_timeout),
                                          .silence_deadline = Deadline::after(patience),
                                          .should_stop = should_stop});
              },
          .data_timeout = std::chrono::milliseconds(200),
          .patience_after_silence = connect_timeout};
}

rpc::Membership server_at(const std::string& address) {
  return {.servers = {{.id = 0, .task = "ps:0", .address = address}}};
}

// Regression: if the server paused for a second, its variables counted as lost.
TEST(ServerLinks, ASilentServerIsWaitedForAsLongAsOneThatWasReached) {
  RawSocket silent;
  ServerLinks links(options());
  links.set(server_at(silent.listen()));
  EXPECT_THAT([&] { links.get(0); },
              throws_error(ErrorCode::deadline_exceeded,
                           "[server.connect] expected an answer from ps:0 within 0.2 s"));
}

// Regression: the next closure waited as long again, so the error came after twice the time.
TEST(ServerLinks, AServerThatHasBeenSilentIsWaitedForAShortTime) {
  RawSocket silent;
  ServerLinks links(options(std::chrono::milliseconds(100)));
  links.set(server_at(silent.listen()));
  EXPECT_THAT([&] { links.get(0); }, throws_error(ErrorCode::deadline_exceeded, "within 0.2 s"));
  EXPECT_THAT([&] { links.get(0); }, throws_error(ErrorCode::deadline_exceeded, "within 0.3 s"));
}

TEST(ServerLinks, AServerThatDidNotAnswerARequestIsWaitedForAShortTime) {
  RawSocket silent;
  ServerLinks::Options again = options(std::chrono::milliseconds(100));
  again.data_timeout = std::chrono::hours(1);
  ServerLinks links(again);
  links.set(server_at(silent.listen()));
  links.note_silence(0);
  EXPECT_THAT([&] { links.get(0); }, throws_error(ErrorCode::deadline_exceeded, "within 3600.1 s"));
}

TEST(ServerLinks, NobodyIsNotWaitedFor) {
  ServerLinks::Options patient = options();
  patient.data_timeout = std::chrono::hours(1);
  ServerLinks links(patient);
  links.set(server_at("127.0.0.1:1"));
  EXPECT_THAT([&] { links.get(0); }, throws_error(ErrorCode::unavailable, "127.0.0.1:1"));
}

// Regression: the closure connected again, and waited for the answer.
TEST(ServerLinks, AfterTheEndNoServerIsReached) {
  ServerLinks links(options());
  links.set(server_at("127.0.0.1:1"));
  links.close();
  EXPECT_THAT([&] { links.get(0); }, throws_error(ErrorCode::cancelled, "worker:0 ends"));
}

TEST(ServerLinks, AServerThatNobodyHasNamedIsRefused) {
  ServerLinks links(options());
  links.set(server_at("127.0.0.1:1"));
  EXPECT_THAT([&] { links.get(1); },
              throws_error(ErrorCode::invalid_argument,
                           "expected a server that the coordinator has named to worker:0, got "
                           "number 1"));
}

// A server that connects with this incarnation.
class NumberedServer {
 public:
  ServerLinks::Options options() {
    return {.self = "worker:0",
            .connect = [this](const rpc::Member& member, Duration, const auto&) {
              EXPECT_EQ(member.address, address);
              return rpc::Connection{
                  .control = nullptr, .data = server.connect(), .incarnation = incarnation};
            }};
  }
  std::string address = "a";
  std::uint64_t incarnation = 5;
  testing::FakeParameterServer server{"ps:0"};
};

TEST(ServerLinks, ConnectsOnceAndAgainAfterALoss) {
  NumberedServer one;
  ServerLinks links(one.options());
  links.set(server_at("a"));
  const auto first = links.get(0).data;
  EXPECT_EQ(links.get(0).data, first);
  EXPECT_EQ(links.losses(), 0U);
  first->close();
  const auto second = links.get(0).data;
  EXPECT_NE(second, first);
  EXPECT_EQ(links.last(0).data, second);
  EXPECT_EQ(links.losses(), 1U);
}

TEST(ServerLinks, AServerThatWasStartedAgainHasLostItsVariables) {
  NumberedServer one;
  ServerLinks links(one.options());
  links.set(server_at("a"));
  links.get(0).data->close();
  EXPECT_EQ(links.membership().servers.at(0).incarnation, 5U);
  one.incarnation = 6;
  EXPECT_THAT([&] { links.get(0); }, throws_error(ErrorCode::unavailable,
                                                  "ps:0 was restarted and has lost its variables"));
}

TEST(ServerLinks, AServerMayMoveWithItsVariables) {
  NumberedServer one;
  ServerLinks links(one.options());
  links.set(server_at("a"));
  links.get(0).data->close();
  rpc::Membership moved = server_at("b");
  moved.epoch = 2;
  links.set(moved);
  links.set(server_at("a"));  // an earlier epoch that comes late
  one.address = "b";
  one.incarnation = 6;
  EXPECT_TRUE(links.get(0).data->is_open());
}

}  // namespace
}  // namespace cohort::parameter_server
