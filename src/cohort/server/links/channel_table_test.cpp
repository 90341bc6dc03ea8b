// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/links/channel_table.h"

#include <gtest/gtest.h>

#include <thread>

#include "cohort/core/log.h"
#include "cohort/rpc/requester.h"
#include "cohort/testing/channel_fixture.h"
#include "cohort/testing/faulty_proxy.h"
#include "cohort/testing/raw_socket.h"
#include "cohort/testing/throws_error.h"

namespace cohort::server {
namespace {

using testing::ChannelPair;
using testing::patience;
using testing::Promised;
using Presence = ChannelTable::Presence;

constexpr std::uint64_t kStart = 7;  // of the coordinator
const rpc::Hello kHello{"chief:0", "job", kStart, 1};

// A table, and peers that send a hello.
class ChannelTableTest : public ::testing::Test {
 protected:
  ChannelPair::MakeHandlers acceptor() {
    return
        [this](std::shared_ptr<rpc::Channel> channel) { return table.accept(std::move(channel)); };
  }
  // The presence of a task that is not ending.
  Presence presence(std::uint64_t start, Deadline answer_by) {
    return table.presence("chief:0", start, Deadline::after(Duration::zero()), answer_by);
  }
  static rpc::Frame hello() {
    rpc::Frame frame = rpc::to_frame(kHello);
    frame.role = rpc::Frame::Role::request;
    frame.id = 1;
    return frame;
  }

  std::shared_ptr<Session> session =
      std::make_shared<Session>(SessionOptions{.self = {.task = "worker:0"}});
  ChannelTable table{[this](const rpc::Hello&) { return session; }};
};

TEST_F(ChannelTableTest, ACoordinatorThatAnswersIsAlive) {
  ChannelPair pair("inprocess", {}, acceptor());
  const auto chief = rpc::Requester::connect(
      pair.backend, {.address = pair.listener->address(), .peer = "ps:0"}, {}, {});
  chief->call(rpc::to_frame(kHello), patience(), "greeting");
  EXPECT_EQ(presence(kStart, patience()), Presence::alive);
  EXPECT_EQ(presence(kStart + 1, patience()), Presence::gone) << "another start";
}

// Regression: if a busy coordinator was silent for a second, another start got its place.
TEST_F(ChannelTableTest, ACoordinatorThatAnswersLateIsAlive) {
  ChannelPair pair("inprocess", {}, acceptor());
  pair.near->send(hello());
  std::thread late([&] {
    pair.at_near.wait_frames(2);  // the reply to the hello, and the ping
    pair.near->send({.role = rpc::Frame::Role::response});
  });
  ASSERT_FALSE(pair.at_near.wait_frames(1).empty());
  EXPECT_EQ(presence(kStart, patience()), Presence::alive);
  late.join();
}

// FrameDecoder makes it of a request that does not fit into memory.
TEST_F(ChannelTableTest, AnErrorInPlaceOfARequestIsItsAnswer) {
  ChannelPair pair("inprocess", {}, acceptor());
  pair.near->send(hello());
  ASSERT_EQ(pair.at_near.wait_frames(1).size(), 1U);
  pair.near->send(rpc::error_frame(5, Error(ErrorCode::resource_exhausted, "no memory")));
  const rpc::Frame answer = pair.at_near.wait_frames(2).back();
  EXPECT_EQ(answer.id, 5U);
  EXPECT_EQ(rpc::error_of(answer).code(), ErrorCode::resource_exhausted);
}

TEST_F(ChannelTableTest, AnswersAPing) {
  ChannelPair pair("inprocess", {}, acceptor());
  pair.near->send(hello());
  ASSERT_EQ(pair.at_near.wait_frames(1).size(), 1U);
  rpc::Frame ping = rpc::ping_frame();
  ping.id = 6;
  pair.near->send(std::move(ping));
  const rpc::Frame answer = pair.at_near.wait_frames(2).back();
  EXPECT_EQ(answer.role, rpc::Frame::Role::response);
  EXPECT_EQ(answer.id, 6U);
}

TEST_F(ChannelTableTest, TheServersEndWaitsForNoCoordinator) {
  ChannelPair pair("inprocess", {}, acceptor());
  pair.near->send(hello());
  std::thread end([&] {
    pair.at_near.wait_frames(2);
    table.end_waits();
  });
  ASSERT_FALSE(pair.at_near.wait_frames(1).empty());
  EXPECT_THAT([&] { table.presence("chief:0", kStart, patience(), patience()); },
              testing::throws_error(ErrorCode::unavailable, "the server ends"));
  end.join();
}

// Regression: the coordinator counted as alive while its connection was open, half a minute after
// the loss of its host.
TEST_F(ChannelTableTest, ACoordinatorWhoseConnectionOnlyStandsIsSilent) {
  ChannelPair pair("inprocess", {}, acceptor());  // the near end answers nothing
  pair.near->send(hello());
  ASSERT_EQ(pair.at_near.wait_frames(1).size(), 1U);
  EXPECT_EQ(presence(kStart, Deadline::after(Duration::zero())), Presence::silent);
  table.close_of(kStart, rpc::replaced_error("ps:0"));
  EXPECT_EQ(presence(kStart, patience()), Presence::gone);
  pair.at_near.wait_closed();
}

// Regression: its waiting calls failed like those to a lost task, so they were tried again.
TEST_F(ChannelTableTest, ACoordinatorWhosePlaceIsTakenHearsSoOnItsChannels) {
  ChannelPair pair("inprocess", {}, acceptor());
  Promised<bool> is_told;
  const auto chief = rpc::Requester::connect(
      pair.backend, {.address = pair.listener->address(), .peer = "ps:0"}, {},
      [&](const Error& reason) { is_told.set(rpc::is_replaced(reason)); });
  chief->call(rpc::to_frame(kHello), patience(), "greeting");
  table.close_of(kStart, rpc::replaced_error("ps:0"));
  EXPECT_TRUE(is_told.wait());
  EXPECT_THAT([&] { chief->call({.type = 1}, patience(), "pulling"); },
              testing::throws_error(ErrorCode::aborted, "another coordinator took its place"));
}

// Regression: the normal end of a coordinator counted as a lost connection.
TEST_F(ChannelTableTest, OnlyACoordinatorThatSaysNoFarewellIsLost) {
  for (const bool leaves : {true, false}) {
    ChannelPair pair("inprocess", {}, acceptor());
    const auto chief = rpc::Requester::connect(
        pair.backend, {.address = pair.listener->address(), .peer = "ps:0"}, {}, {});
    chief->call(rpc::to_frame(kHello), patience(), "greeting");
    leaves ? chief->leave() : chief->close();
    EXPECT_EQ(table.presence("chief:0", kStart, patience(), patience()), Presence::gone);
    EXPECT_EQ(table.losses(), leaves ? 0U : 1U);
  }
}

TEST_F(ChannelTableTest, IsUnusedWhenAllTasksHaveLeft) {
  ChannelPair pair("inprocess", {}, acceptor());
  const auto connect = [&] {
    auto task = rpc::Requester::connect(
        pair.backend, {.address = pair.listener->address(), .peer = "ps:0"}, {}, {});
    task->call(rpc::to_frame(kHello), patience(), "greeting");
    return task;
  };
  EXPECT_EQ(table.unused_for(), std::nullopt) << "nobody has come yet";
  const auto first = connect(), second = connect();
  first->leave();
  second->close();
  EXPECT_EQ(table.presence("chief:0", kStart, patience(), patience()), Presence::gone);
  EXPECT_NE(table.unused_for(), std::nullopt);
  const auto third = connect();
  EXPECT_EQ(table.unused_for(), std::nullopt);
}

// Regression: the handlers of these channels used the table after its destruction.
TEST_F(ChannelTableTest, WhenAllAreClosedNoHandlerRuns) {
  Promised<bool> is_greeting, may_greet;
  std::atomic<bool> has_greeted = false;
  ChannelTable slow([&](const rpc::Hello&) {
    is_greeting.set(true);
    may_greet.wait();
    has_greeted = true;
    return session;
  });
  ChannelPair pair("inprocess", {}, [&](auto channel) { return slow.accept(std::move(channel)); });
  pair.near->send(hello());
  is_greeting.wait();
  std::thread later([&] {
    pair.at_near.wait_closed();
    may_greet.set(true);
  });
  pair.far.reset();
  EXPECT_TRUE(slow.close_all(Deadline::after(Duration::zero()), patience()));
  EXPECT_TRUE(has_greeted);
  later.join();
}

// Regression: each refusal was logged, so a flood of them filled the disk.
TEST_F(ChannelTableTest, BrokenFramesOfAStrangerHaveOneLine) {
  std::atomic<std::size_t> lines = 0;
  set_log_sink([&](LogLevel, std::string_view line) {
    lines += line.find("broken frame") == std::string_view::npos ? 0 : 1;
  });
  {
    ChannelPair pair("stream", {}, acceptor());
    for (int i = 0; i < 20; ++i) {
      testing::RawSocket stranger = testing::RawSocket::connected(pair.listener->address());
      stranger.write("COHF" + std::string(96, 'x'));
      EXPECT_TRUE(stranger.await_end());
    }
    EXPECT_TRUE(table.close_all(Deadline::after(Duration::zero()), patience()));
  }
  set_log_sink(nullptr);
  EXPECT_EQ(lines, 1);
}

// Regression: close_all() waited without a deadline, and so for ever if the handler did not return.
TEST_F(ChannelTableTest, AHandlerThatDoesNotEndIsLeftBehind) {
  struct Kept {
    std::shared_ptr<Session> session;
    Promised<bool> is_greeting, may_greet;
  };
  // Shared with the handler, which may end after the test.
  auto kept = std::make_shared<Kept>();
  kept->session = session;
  auto slow = std::make_unique<ChannelTable>([kept](const rpc::Hello&) {
    kept->is_greeting.set(true);
    kept->may_greet.wait();
    return kept->session;
  });
  ChannelPair pair("stream", {}, [&](auto channel) { return slow->accept(std::move(channel)); });
  pair.near->send(hello());
  kept->is_greeting.wait();
  pair.far.reset();
  const Deadline now = Deadline::after(Duration::zero());
  EXPECT_FALSE(slow->close_all(now, now));
  slow.reset();
  kept->may_greet.set(true);
  pair.at_near.wait_closed();
}

// A peer that sends wrong messages cannot be trusted.
TEST_F(ChannelTableTest, AWatermarkAboveItsClosureEndsTheConnection) {
  for (const bool is_push : {true, false}) {
    const std::uint64_t before = table.protocol_errors();
    ChannelPair pair("stream", {}, acceptor());
    Promised<ErrorCause> closed;
    const auto peer =
        rpc::Requester::connect(pair.backend, {.address = pair.listener->address(), .peer = "ps:0"},
                                {}, [&](const Error& reason) { closed.set(reason.cause()); });
    peer->call(rpc::to_frame(kHello), patience(), "greeting");
    if (is_push) {
      const rpc::PushRequest wrong{.id = {.number = 4}, .low_watermark = 5};
      EXPECT_THAT([&] { peer->call(rpc::to_frame(wrong), patience(), "pushing"); },
                  testing::throws_error(ErrorCode::data_loss, "low watermark of at most"));
    } else {
      peer->send_one_way(
          rpc::to_frame(rpc::RunBatch{.low_watermark = 5, .closures = {{.closure_id = 4}}}));
    }
    EXPECT_EQ(closed.wait(), ErrorCause::peer_lost);
    EXPECT_EQ(table.protocol_errors() - before, 1U);
  }
}

// One host, for all options of the hello and of the job.
TEST_F(ChannelTableTest, TheAnswerSaysWhetherPayloadsHaveChecksums) {
  const auto has_sums = [&](PayloadChecksums caller) {
    ChannelPair pair("stream", {}, acceptor());
    rpc::Hello wish = kHello;
    wish.payload_checksums = caller;
    wish.host = pair.near->host_proof();
    rpc::Frame frame = rpc::to_frame(wish);
    frame.role = rpc::Frame::Role::request;
    pair.near->send(std::move(frame));
    return rpc::message_of<rpc::HelloReply>(pair.at_near.wait_frames(1).at(0)).has_payload_sums;
  };
  EXPECT_FALSE(has_sums(PayloadChecksums::between_hosts));
  EXPECT_FALSE(has_sums(PayloadChecksums::never));
  EXPECT_TRUE(has_sums(PayloadChecksums::always));
  session =
      std::make_shared<Session>(SessionOptions{.self = {.task = "worker:0"},
                                               .coordinator = "chief:0",
                                               .coordinator_incarnation = kStart,
                                               .payload_checksums = PayloadChecksums::always});
  EXPECT_TRUE(has_sums(PayloadChecksums::never));
}

// Regression: both ends saw an address of their own host, so a bit that the proxy flipped was a
// wrong number without a word.
TEST_F(ChannelTableTest, AProxyOnThisHostTurnsChecksumsOn) {
  ChannelPair pair("stream", {}, acceptor());
  testing::FaultyProxy proxy;
  proxy.set_target(pair.listener->address());
  const auto has_sums = [&](const std::string& address) {
    const auto peer = rpc::Requester::connect(
        pair.backend, {.address = address, .peer = "ps:0", .deadline = patience()});
    rpc::Hello hello = kHello;
    hello.host = peer->host_proof();
    const rpc::Frame answer = peer->call(rpc::to_frame(hello), patience(), "greeting");
    return rpc::message_of<rpc::HelloReply>(answer).has_payload_sums;
  };
  EXPECT_FALSE(has_sums(pair.listener->address()));
  EXPECT_TRUE(has_sums(proxy.address()));
}

TEST(AgreedChecksums, AWordCountsMoreThanNoneAndChecksumsMoreThanNot) {
  using rpc::agreed;
  using enum PayloadChecksums;
  EXPECT_EQ(agreed(between_hosts, between_hosts), between_hosts);
  EXPECT_EQ(agreed(never, between_hosts), never);
  EXPECT_EQ(agreed(between_hosts, always), always);
  EXPECT_EQ(agreed(always, never), always);
}

TEST_F(ChannelTableTest, AStrangerHasOneTryToGreet) {
  ChannelPair pair("inprocess", {}, acceptor());
  rpc::Frame pull = rpc::to_frame(rpc::PullRequest{{1}});
  pull.role = rpc::Frame::Role::request;
  pair.near->send(std::move(pull));
  EXPECT_EQ(pair.at_near.wait_frames(1).at(0).role, rpc::Frame::Role::error);
  pair.near->send(hello());
  pair.at_near.wait_closed();
}

TEST_F(ChannelTableTest, AcceptsNothingMoreWhenItHasClosed) {
  EXPECT_TRUE(table.close_all(Deadline::after(Duration::zero()), patience()));
  ChannelPair pair("inprocess");
  EXPECT_THAT([&] { table.accept(pair.far); },
              testing::throws_error(ErrorCode::unavailable, "the server ends"));
}

}  // namespace
}  // namespace cohort::server
