// SPDX-License-Identifier: Apache-2.0
// Tests of the network backends beyond the conformance suite.
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "cohort/core/crc32c.h"
#include "cohort/rpc/frames/frame_codec.h"
#include "cohort/testing/channel_fixture.h"
#include "cohort/testing/error_of.h"
#include "cohort/testing/raw_socket.h"

namespace cohort::rpc {
namespace {

using cohort::testing::ChannelPair;
using cohort::testing::DeadAddress;
using cohort::testing::listen_on;
using cohort::testing::listen_on_stream;
using cohort::testing::patience;
using cohort::testing::RawSocket;
using cohort::testing::Recorder;
using ::testing::HasSubstr;

class SocketBackendTest : public ::testing::TestWithParam<std::string> {
 protected:
  const Backend& backend() { return backend_of(GetParam()); }

  Error error_of_connecting(const std::string& address, Deadline deadline = patience()) {
    return testing::error_of(
        [&] { backend().connect({.address = address, .peer = "ps:3", .deadline = deadline}, {}); });
  }
};

TEST_P(SocketBackendTest, AnAddressThatNeverAnswersMeetsTheDeadlineAndIsNamed) {
  const DeadAddress dead;
  const Error error =
      error_of_connecting(dead.address(), Deadline::after(std::chrono::milliseconds(100)));
  EXPECT_EQ(error.code(), ErrorCode::deadline_exceeded);
  EXPECT_EQ(error.origin(), "ps:3");
  EXPECT_THAT(error.message(), HasSubstr("ps:3 (" + dead.address() + ", " + GetParam() + ")"));
}

TEST_P(SocketBackendTest, MalformedAddressesAreRefused) {
  for (const char* address :
       {"", "localhost", ":80", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "::1:80"}) {
    EXPECT_EQ(error_of_connecting(address).code(), ErrorCode::invalid_argument) << address;
  }
}

TEST_P(SocketBackendTest, HostNamesWork) {
  Recorder far;
  std::shared_ptr<Channel> kept;
  const auto listener = listen_on(GetParam(), "localhost:0", [&](std::shared_ptr<Channel> channel) {
    kept = std::move(channel);
    return far.handlers();
  });
  EXPECT_THAT(listener->address(), HasSubstr("localhost:"));
  const auto near = backend().connect({.address = listener->address(), .deadline = patience()}, {});
  near->send({.id = 1});
  EXPECT_EQ(far.wait_frames(1).at(0).id, 1U);
}

TEST_P(SocketBackendTest, AFrameAboveTheReceiversLimitClosesTheChannel) {
  ChannelPair pair(GetParam(), {}, {}, 100'000);
  pair.near->send({.id = 1, .tensors = {at::ones({1000})}});
  pair.near->send({.id = 2, .tensors = {at::ones({100'000})}});
  EXPECT_EQ(pair.at_far.wait_frames(1).at(0).id, 1U);
  EXPECT_EQ(pair.at_far.wait_closed().code(), ErrorCode::data_loss);
  EXPECT_EQ(pair.at_near.wait_closed().cause(), ErrorCause::peer_lost);
}

TEST_P(SocketBackendTest, AStrangerDoesNotHarmTheListener) {
  ChannelPair pair(GetParam());
  RawSocket stranger = RawSocket::connected(pair.listener->address());
  const std::string request = "GET / HTTP/1.1\r\nHost: example\r\nUser-Agent: somebody\r\n\r\n";
  stranger.write(std::as_bytes(std::span(request)));
  pair.near->send({.id = 1});
  EXPECT_EQ(pair.at_far.wait_frames(1).at(0).id, 1U);
}

INSTANTIATE_TEST_SUITE_P(All, SocketBackendTest, ::testing::Values("stream", "grpc"),
                         [](const auto& each) { return each.param; });

// A stream listener whose channels are recorded, and a bare socket to it.
class StreamPeerTest : public ::testing::Test {
 protected:
  StreamPeerTest()
      : listener_(listen_on_stream([this](std::shared_ptr<Channel> channel) {
          accepted_.set(std::move(channel));
          return far_.handlers();
        })),
        socket_(RawSocket::connected(listener_->address())),
        channel_(accepted_.wait()) {}

  void write(internal::FrameHeader header) {
    header.number = next_number_++;
    header.sum = header.right_sum();
    socket_.write(std::as_bytes(std::span(&header, 1)));
  }

  Recorder far_;
  cohort::testing::Promised<std::shared_ptr<Channel>> accepted_;
  std::unique_ptr<Listener> listener_;
  RawSocket socket_;
  std::shared_ptr<Channel> channel_;
  std::uint32_t next_number_ = 0;
};

TEST_F(StreamPeerTest, AResetConnectionIsALostPeer) {
  write({.id = 5});
  far_.wait_frames(1);
  socket_.reset();
  EXPECT_EQ(far_.wait_closed().cause(), ErrorCause::peer_lost);
}

TEST_F(StreamPeerTest, AConnectionThatEndsInsideAFrameDeliversNothingOfIt) {
  write({.id = 1});
  write({.id = 2, .metadata_bytes = 1000});
  socket_ = RawSocket();
  EXPECT_EQ(far_.wait_closed().cause(), ErrorCause::peer_lost);
  EXPECT_EQ(far_.wait_frames(1).size(), 1U);
}

TEST_F(StreamPeerTest, BrokenBytesCloseWithDataLoss) {
  write({.magic = 0x12345678});
  const Error error = far_.wait_closed();
  EXPECT_EQ(error.code(), ErrorCode::data_loss);
  EXPECT_EQ(error.cause(), ErrorCause::peer_lost);
}

TEST_F(StreamPeerTest, ABrokenFrameNamesThePeerAndIsCounted) {
  const std::uint64_t before = broken_frames();
  internal::FrameHeader header;
  header.sum = header.right_sum() ^ 1;
  socket_.write(std::as_bytes(std::span(&header, 1)));
  const Error error = far_.wait_closed();
  EXPECT_EQ(error.code(), ErrorCode::data_loss);
  EXPECT_EQ(error.cause(), ErrorCause::peer_lost);
  EXPECT_THAT(error.message(), HasSubstr("it came from 127.0.0.1:"));
  EXPECT_EQ(broken_frames() - before, 1U);
}

TEST_F(StreamPeerTest, AClaimedPayloadBeyondAllMemoryIsRefused) {
  ByteWriter table;
  table.varint(1);
  table.u8(0);
  table.sizes(std::vector<std::int64_t>{1LL << 62});
  write({.table_bytes = static_cast<std::uint32_t>(table.bytes().size()),
         .payload_bytes = 1ULL << 62,
         .head_sum = crc32c(table.bytes())});
  socket_.write(table.bytes());
  EXPECT_EQ(far_.wait_closed().code(), ErrorCode::data_loss);
}

TEST_F(StreamPeerTest, SendingToALostPeerNeverRaisesSigpipe) {
  signal(SIGPIPE, SIG_DFL);
  socket_.reset();
  const Deadline end = patience();
  try {
    while (!end.has_expired()) channel_->send({.tensors = {at::ones({1000})}});
    FAIL() << "still open";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
  }
}

TEST(StreamBackendTest, AnAnswerBeforeCloseInAHandlerLeaves) {
  ChannelPair pair("stream", {}, [](std::shared_ptr<Channel> channel) {
    return Channel::Handlers{.on_frame = [channel](Frame frame) {
      channel->send(std::move(frame));
      channel->close();
    }};
  });
  pair.near->send({.id = 9});
  EXPECT_EQ(pair.at_near.wait_frames(1).at(0).id, 9U);
  EXPECT_EQ(pair.at_near.wait_closed().cause(), ErrorCause::peer_lost);
}

TEST(BackendTable, EachBackendKnowsItsName) {
  EXPECT_THAT(backend_names(), ::testing::ElementsAre("inprocess", "stream", "grpc"));
  for (const std::string& name : backend_names()) EXPECT_EQ(backend_of(name).name, name);
}

TEST(BackendTable, AnUnknownBackendIsRefusedWithTheKnownOnes) {
  try {
    backend_of("carrier_pigeon");
    FAIL() << "found";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unimplemented);
    EXPECT_THAT(error.message(), HasSubstr("inprocess stream grpc, got 'carrier_pigeon'"));
  }
}

}  // namespace
}  // namespace cohort::rpc
