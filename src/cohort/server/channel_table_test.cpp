// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/internal/channel_table.h"

#include <gtest/gtest.h>

#include <thread>

#include "cohort/rpc/requester.h"
#include "cohort/testing/channel_fixture.h"
#include "cohort/testing/throws_error.h"

namespace cohort::server {
namespace {

using testing::ChannelPair;
using testing::patience;
using testing::Promised;
using Presence = ChannelTable::Presence;

constexpr std::uint64_t kStart = 7;  // of the coordinator
const rpc::Hello kHello{"chief:0", "job", kStart, 1};

// A table, and peers of it that greet.
class ChannelTableTest : public ::testing::Test {
 protected:
  ChannelPair::MakeHandlers acceptor() {
    return
        [this](std::shared_ptr<rpc::Channel> channel) { return table.accept(std::move(channel)); };
  }
  // Of one that is not about to go.
  Presence presence(std::uint64_t start, Deadline answer_by) {
    return table.presence("chief:0", start, Deadline::after(Duration::zero()), answer_by);
  }
  static rpc::Frame hello() {
    rpc::Frame frame = rpc::to_frame(kHello);
    frame.role = rpc::Frame::Role::request;
    frame.id = 1;
    return frame;
  }

  std::shared_ptr<Job> job = std::make_shared<Job>(JobOptions{.self = {.task = "worker:0"}});
  ChannelTable table{[this](const rpc::Hello&) { return job; }};
};

TEST_F(ChannelTableTest, ACoordinatorThatAnswersIsAlive) {
  ChannelPair pair("inprocess", {}, acceptor());
  const auto chief = rpc::Requester::connect(
      pair.backend, {.address = pair.listener->address(), .peer = "ps:0"}, {}, {});
  chief->call(rpc::to_frame(kHello), patience(), "greeting");
  EXPECT_EQ(presence(kStart, patience()), Presence::alive);
  EXPECT_EQ(presence(kStart + 1, patience()), Presence::gone) << "another start";
}

// A second of silence, as of a host that was busy, gave the job to another start.
TEST_F(ChannelTableTest, ACoordinatorThatAnswersLateIsAlive) {
  ChannelPair pair("inprocess", {}, acceptor());
  pair.near->send(hello());
  std::thread late([&] {
    pair.at_near.wait_frames(2);  // the welcome, and the ping: nobody waits for it to go any more
    pair.near->send({.role = rpc::Frame::Role::response});
  });
  ASSERT_FALSE(pair.at_near.wait_frames(1).empty());
  EXPECT_EQ(presence(kStart, patience()), Presence::alive);
  late.join();
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

// It was taken for alive as long as its connection stood: half a minute after its host had gone.
TEST_F(ChannelTableTest, ACoordinatorWhoseConnectionOnlyStandsIsSilent) {
  ChannelPair pair("inprocess", {}, acceptor());  // its near end answers nothing
  pair.near->send(hello());
  ASSERT_EQ(pair.at_near.wait_frames(1).size(), 1U);
  EXPECT_EQ(presence(kStart, Deadline::after(Duration::zero())), Presence::silent);
  table.close_of(kStart);
  EXPECT_EQ(presence(kStart, patience()), Presence::gone);
  pair.at_near.wait_closed();
}

// Their handlers used the table, which could be gone.
TEST_F(ChannelTableTest, WhenAllAreClosedNoHandlerRuns) {
  Promised<bool> is_greeting, may_greet;
  std::atomic<bool> has_greeted = false;
  ChannelTable slow([&](const rpc::Hello&) {
    is_greeting.set(true);
    may_greet.wait();
    has_greeted = true;
    return job;
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

// The end waited for it, for ever with one that does not end.
TEST_F(ChannelTableTest, AHandlerThatDoesNotEndIsLeftBehind) {
  struct Kept {
    std::shared_ptr<Job> job;
    Promised<bool> is_greeting, may_greet;
  };
  // The handler's too, which may end after the test.
  auto kept = std::make_shared<Kept>();
  kept->job = job;
  auto slow = std::make_unique<ChannelTable>([kept](const rpc::Hello&) {
    kept->is_greeting.set(true);
    kept->may_greet.wait();
    return kept->job;
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

TEST_F(ChannelTableTest, AcceptsNothingMoreWhenItHasClosed) {
  EXPECT_TRUE(table.close_all(Deadline::after(Duration::zero()), patience()));
  ChannelPair pair("inprocess");
  EXPECT_THAT([&] { table.accept(pair.far); },
              testing::throws_error(ErrorCode::unavailable, "the server ends"));
}

}  // namespace
}  // namespace cohort::server
