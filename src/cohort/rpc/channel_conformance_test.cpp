// SPDX-License-Identifier: Apache-2.0
// The contract of every backend. A new backend adds its name to the last line.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "cohort/core/tensor_spec.h"
#include "cohort/testing/channel_fixture.h"
#include "cohort/testing/error_of.h"

namespace cohort::rpc {
namespace {

using cohort::testing::ChannelPair;
using cohort::testing::listen_on;
using cohort::testing::patience;
using cohort::testing::Promised;
using cohort::testing::Recorder;
using ::testing::HasSubstr;

Frame numbered(std::uint64_t id, std::vector<at::Tensor> tensors = {}) {
  return {.type = 7, .id = id, .tensors = std::move(tensors)};
}

Bytes bytes_of(std::string_view text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return Bytes(begin, begin + text.size());
}

bool is_equal(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && at::equal(a, b);
}

class ChannelConformance : public ::testing::TestWithParam<std::string> {
 protected:
  const Backend& backend() { return backend_of(GetParam()); }

  // Returns `tensor` as it arrives at the other end.
  at::Tensor sent(const at::Tensor& tensor) {
    ChannelPair pair(GetParam());
    pair.near->send(numbered(1, {tensor}));
    return pair.at_far.wait_frames(1).at(0).tensors.at(0);
  }
};

TEST_P(ChannelConformance, EachFieldOfAFrameArrives) {
  ChannelPair pair(GetParam());
  pair.near->send({.role = Frame::Role::response,
                   .type = 0xfedc,
                   .id = 0xfedcba9876543210,
                   .metadata = bytes_of("meta"),
                   .tensors = {at::arange(3)}});
  const Frame frame = pair.at_far.wait_frames(1).at(0);
  EXPECT_EQ(frame.role, Frame::Role::response);
  EXPECT_EQ(frame.type, 0xfedc);
  EXPECT_EQ(frame.id, 0xfedcba9876543210);
  EXPECT_EQ(frame.metadata, bytes_of("meta"));
  EXPECT_TRUE(is_equal(frame.tensors.at(0), at::arange(3)));
}

TEST_P(ChannelConformance, BothEndsSend) {
  ChannelPair pair(GetParam());
  pair.near->send(numbered(1));
  pair.far->send(numbered(2));
  EXPECT_EQ(pair.at_far.wait_frames(1).at(0).id, 1U);
  EXPECT_EQ(pair.at_near.wait_frames(1).at(0).id, 2U);
}

TEST_P(ChannelConformance, ManySmallFramesKeepTheirOrder) {
  constexpr std::uint64_t kCount = 20'000;
  ChannelPair pair(GetParam());
  for (std::uint64_t i = 0; i < kCount; ++i)
    pair.near->send(numbered(i, {at::full({}, double(i))}));
  const std::vector<Frame> frames = pair.at_far.wait_frames(kCount);
  for (std::uint64_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(frames[i].id, i);
    ASSERT_EQ(frames[i].tensors.at(0).item<double>(), double(i));
  }
}

TEST_P(ChannelConformance, SmallAndLargeFramesKeepTheirOrder) {
  ChannelPair pair(GetParam());
  std::vector<at::Tensor> tensors;
  for (std::int64_t i = 0; i < 60; ++i) {
    tensors.push_back(at::randint(1000, {i % 3 == 0 ? 100'000 + i : i}));
    pair.near->send({.id = std::uint64_t(i),
                     .metadata = Bytes(std::size_t(i) * 300),
                     .tensors = {tensors.back()}});
  }
  const std::vector<Frame> frames = pair.at_far.wait_frames(60);
  for (std::size_t i = 0; i < 60; ++i) {
    EXPECT_EQ(frames[i].id, i);
    EXPECT_EQ(frames[i].metadata.size(), i * 300);
    EXPECT_TRUE(is_equal(frames[i].tensors.at(0), tensors[i]));
  }
}

TEST_P(ChannelConformance, PayloadsArriveEqualWithAndWithoutChecksums) {
  ChannelPair pair(GetParam());
  std::vector<at::Tensor> tensors;
  for (std::int64_t i = 0; i < 30; ++i) {
    pair.near->set_payload_checksums(i % 3 != 0);
    tensors.push_back(at::randint(1000, {i % 4 == 0 ? 200'000 + i : 7 * i}));
    pair.near->send(numbered(std::uint64_t(i), {at::ones({3}), tensors.back(), at::ones({i})}));
  }
  const std::vector<Frame> frames = pair.at_far.wait_frames(30);
  for (std::size_t i = 0; i < 30; ++i)
    EXPECT_TRUE(is_equal(frames[i].tensors.at(1), tensors[i])) << i;
}

TEST_P(ChannelConformance, BothEndsOfOneHostProveThatTheyAre) {
  ChannelPair pair(GetParam());
  const bool can_prove = std::string_view(GetParam()) != "grpc";  // see Channel::host_proof()
  EXPECT_EQ(net::are_on_one_host(pair.near->host_proof(), pair.far->host_proof()), can_prove);
}

TEST_P(ChannelConformance, ALargeTensorArrivesEqual) {
  const at::Tensor large = at::rand({16 << 20});  // 64 MiB
  EXPECT_TRUE(is_equal(sent(large), large));
}

TEST_P(ChannelConformance, LargeTensorsCrossInBothDirectionsAtOnce) {
  ChannelPair pair(GetParam());
  const at::Tensor large = at::rand({4 << 20});
  for (std::uint64_t i = 0; i < 3; ++i) {
    pair.near->send(numbered(i, {large}));
    pair.far->send(numbered(i, {large}));
  }
  EXPECT_TRUE(is_equal(pair.at_far.wait_frames(3).at(2).tensors.at(0), large));
  EXPECT_TRUE(is_equal(pair.at_near.wait_frames(3).at(2).tensors.at(0), large));
}

TEST_P(ChannelConformance, MegabytesOfMetadataArrive) {
  ChannelPair pair(GetParam());
  Bytes metadata(3'000'000);
  for (std::size_t i = 0; i < metadata.size(); ++i) metadata[i] = std::byte(i * 7);
  pair.near->send({.id = 1, .metadata = metadata});
  pair.near->send({.id = 2, .metadata = metadata});
  const std::vector<Frame> frames = pair.at_far.wait_frames(2);
  EXPECT_EQ(frames.at(0).metadata, metadata);
  EXPECT_EQ(frames.at(1).metadata, metadata);
}

TEST_P(ChannelConformance, AFrameWithoutTensorsArrives) {
  ChannelPair pair(GetParam());
  pair.near->send(numbered(5));
  EXPECT_TRUE(pair.at_far.wait_frames(1).at(0).tensors.empty());
}

TEST_P(ChannelConformance, AThousandTensorsInAFrameArrive) {
  ChannelPair pair(GetParam());
  std::vector<at::Tensor> tensors;
  for (std::int64_t i = 0; i < 1000; ++i) tensors.push_back(at::full({i % 50}, i));
  pair.near->send(numbered(1, tensors));
  const Frame frame = pair.at_far.wait_frames(1).at(0);
  ASSERT_EQ(frame.tensors.size(), 1000U);
  for (std::size_t i = 0; i < 1000; ++i) EXPECT_TRUE(is_equal(frame.tensors[i], tensors[i]));
}

TEST_P(ChannelConformance, EmptyAndZeroDimensionalTensorsKeepTheirShape) {
  const std::vector<at::Tensor> tensors = {at::empty({0}), at::empty({3, 0, 2}, at::kLong),
                                           at::full({}, 2.5), at::ones({1, 1}),
                                           at::empty({0, 1LL << 40})};
  ChannelPair pair(GetParam());
  pair.near->send(numbered(1, tensors));
  const Frame frame = pair.at_far.wait_frames(1).at(0);
  ASSERT_EQ(frame.tensors.size(), tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i)
    EXPECT_TRUE(is_equal(frame.tensors[i], tensors[i]));
}

TEST_P(ChannelConformance, NonContiguousTensorsArriveContiguous) {
  const at::Tensor matrix = at::rand({300, 200});
  for (const at::Tensor& view :
       {matrix.t(), matrix.slice(1, 3, 190, 2), matrix.select(0, 4).expand({5, 200})}) {
    const at::Tensor arrived = sent(view);
    EXPECT_TRUE(is_equal(arrived, view));
    EXPECT_TRUE(arrived.is_contiguous());
  }
}

TEST_P(ChannelConformance, AViewIntoALargerTensorArrivesAlone) {
  const at::Tensor large = at::rand({1000, 64});
  const at::Tensor arrived = sent(large.slice(0, 10, 20));
  EXPECT_TRUE(is_equal(arrived, large.slice(0, 10, 20)));
  EXPECT_EQ(arrived.storage().nbytes(), 10U * 64 * 4);
}

TEST_P(ChannelConformance, EachTypeArrives) {
  for (const at::ScalarType type :
       {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kFloat, at::kDouble,
        at::kComplexFloat, at::kComplexDouble, at::kBool, at::kBFloat16}) {
    const at::Tensor tensor = at::arange(5000).remainder(100).to(type);
    EXPECT_TRUE(is_equal(sent(tensor), tensor)) << type;
    EXPECT_TRUE(is_equal(sent(tensor.slice(0, 1, 4)), tensor.slice(0, 1, 4))) << type;
  }
}

TEST_P(ChannelConformance, ArrivedTensorsAreAlignedAndWritable) {
  ChannelPair pair(GetParam());
  const at::Tensor byte = at::ones({5}, at::kByte);
  pair.near->send(numbered(1, {at::ones({3}), at::ones({100'000}), byte, at::ones({70'000})}));
  const std::vector<at::Tensor> arrived = pair.at_far.wait_frames(1).at(0).tensors;
  ASSERT_EQ(arrived.size(), 4U);
  for (const at::Tensor& tensor : arrived) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % 64, 0U);
    EXPECT_EQ(tensor.add_(1).sum().item<std::int64_t>(), 2 * tensor.numel());
  }
}

TEST_P(ChannelConformance, ArrivedTensorsDoNotShareTheSendersMemory) {
  const at::Tensor tensor = at::zeros({10'000});
  const at::Tensor arrived = sent(tensor);
  tensor.fill_(1);
  EXPECT_EQ(arrived.sum().item<double>(), 0);
}

TEST_P(ChannelConformance, ArrivedTensorsOutliveTheChannel) {
  at::Tensor arrived;
  {
    ChannelPair pair(GetParam());
    pair.near->send(numbered(1, {at::ones({100'000})}));
    arrived = pair.at_far.wait_frames(1).at(0).tensors.at(0);
  }
  EXPECT_EQ(arrived.sum().item<double>(), 100'000);
}

TEST_P(ChannelConformance, TensorsThatCannotTravelAreRefusedAndTheChannelStaysOpen) {
  ChannelPair pair(GetParam());
  for (const at::Tensor& tensor : {at::Tensor(), at::ones({2}).to_sparse()}) {
    try {
      pair.near->send(numbered(1, {tensor}));
      FAIL() << "sent";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    }
  }
  pair.near->send(numbered(2));
  EXPECT_EQ(pair.at_far.wait_frames(1).at(0).id, 2U);
}

TEST_P(ChannelConformance, ConcurrentSendersKeepTheirOwnOrder) {
  constexpr std::uint64_t kThreads = 4;
  constexpr std::uint64_t kEach = 1000;
  ChannelPair pair(GetParam());
  std::vector<std::thread> senders;
  for (std::uint64_t thread = 0; thread < kThreads; ++thread) {
    senders.emplace_back([&, thread] {
      for (std::uint64_t i = 0; i < kEach; ++i) {
        const auto size = static_cast<std::int64_t>(i % 100 == 0 ? 50'000 : 3);
        pair.near->send(
            {.type = std::uint16_t(thread), .id = i, .tensors = {at::full({size}, double(i))}});
      }
    });
  }
  for (std::thread& sender : senders) sender.join();
  std::vector<std::uint64_t> next(kThreads, 0);
  for (const Frame& frame : pair.at_far.wait_frames(kThreads * kEach)) {
    ASSERT_EQ(frame.id, next.at(frame.type)++);
    ASSERT_EQ(frame.tensors.at(0)[-1].item<double>(), double(frame.id));
  }
}

TEST_P(ChannelConformance, RepliesFromTheHandlerArrive) {
  ChannelPair pair(GetParam(), {}, [](std::shared_ptr<Channel> channel) {
    return Channel::Handlers{
        .on_frame = [channel](Frame frame) { channel->send(std::move(frame)); }};
  });
  for (std::uint64_t i = 0; i < 500; ++i) pair.near->send(numbered(i, {at::ones({20'000})}));
  EXPECT_EQ(pair.at_near.wait_frames(500).back().id, 499U);
  pair.near->close();  // releases the handler, and with it the channel
}

TEST_P(ChannelConformance, HandlersNeverOverlap) {
  std::atomic<int> running{0};
  std::atomic<int> overlaps{0};
  Recorder done;
  ChannelPair pair(GetParam(), {}, [&](const std::shared_ptr<Channel>&) {
    const auto watch = [&](auto... frame) {
      if (++running > 1) ++overlaps;
      std::this_thread::yield();
      --running;
      if constexpr (sizeof...(frame) > 0) (done.add(std::move(frame)), ...);
    };
    return Channel::Handlers{.on_frame = watch, .on_closed = [watch](const Error&) { watch(); }};
  });
  for (std::uint64_t i = 0; i < 300; ++i) pair.near->send(numbered(i));
  done.wait_frames(300);
  pair.far->close();
  pair.far.reset();
  EXPECT_EQ(overlaps, 0);
}

TEST_P(ChannelConformance, CloseReportsCancelledHereAndPeerLostThere) {
  ChannelPair pair(GetParam());
  pair.near->close();
  EXPECT_EQ(pair.at_near.wait_closed().code(), ErrorCode::cancelled);
  const Error lost = pair.at_far.wait_closed();
  EXPECT_EQ(lost.code(), ErrorCode::unavailable);
  EXPECT_EQ(lost.cause(), ErrorCause::peer_lost);
}

TEST_P(ChannelConformance, TheLostPeerIsTheOrigin) {
  ChannelPair pair(GetParam());
  pair.far->close();
  const Error lost = pair.at_near.wait_closed();
  EXPECT_EQ(lost.cause(), ErrorCause::peer_lost);
  EXPECT_EQ(lost.origin(), "worker:1");
  EXPECT_THAT(lost.what(),
              HasSubstr("worker:1 (" + pair.listener->address() + ", " + GetParam() + ")"));
}

TEST_P(ChannelConformance, OnClosedComesExactlyOnce) {
  ChannelPair pair(GetParam());
  std::thread other([&] { pair.far->close(); });
  pair.near->close();
  pair.near->close();
  other.join();
  pair.at_near.wait_closed();
  pair.at_far.wait_closed();
  pair.near.reset();
  pair.far.reset();
  EXPECT_EQ(pair.at_near.closed_count(), 1U);
  EXPECT_EQ(pair.at_far.closed_count(), 1U);
}

TEST_P(ChannelConformance, ADestroyedChannelHasReportedItsEnd) {
  ChannelPair pair(GetParam());
  pair.near.reset();
  EXPECT_EQ(pair.at_near.closed_count(), 1U);
  EXPECT_EQ(pair.at_far.wait_closed().cause(), ErrorCause::peer_lost);
}

TEST_P(ChannelConformance, SendingOnAClosedChannelIsUnavailable) {
  ChannelPair pair(GetParam());
  pair.near->close();
  try {
    pair.near->send(numbered(1));
    FAIL() << "sent";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_EQ(error.origin(), "worker:1");
  }
}

TEST_P(ChannelConformance, FramesBeforeTheEndArriveInOrderAndWhole) {
  for (int round = 0; round < 10; ++round) {
    ChannelPair pair(GetParam());
    std::thread sender([&] {
      try {
        for (std::uint64_t i = 0;; ++i) pair.near->send(numbered(i, {at::full({2000}, double(i))}));
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::unavailable);
      }
    });
    pair.at_far.wait_frames(20);
    (round % 2 == 0 ? pair.near : pair.far)->close();
    sender.join();
    pair.at_far.wait_closed();
    std::uint64_t next = 0;
    for (const Frame& frame : pair.at_far.wait_frames(20)) {
      ASSERT_EQ(frame.id, next++);
      ASSERT_EQ(frame.tensors.at(0)[1999].item<double>(), double(frame.id));
    }
  }
}

TEST_P(ChannelConformance, ClosingDropsLargeFramesThatAreStillQueued) {
  ChannelPair pair(GetParam());
  const at::Tensor large = at::zeros({8 << 20});
  for (std::uint64_t i = 0; i < 8; ++i) pair.near->send(numbered(i, {large}));
  pair.near->close();
  pair.near.reset();
  pair.at_far.wait_closed();
  EXPECT_EQ(large.use_count(), 1U);
}

TEST_P(ChannelConformance, SentTensorsAreReleased) {
  ChannelPair pair(GetParam());
  const at::Tensor large = at::zeros({4 << 20});
  pair.near->send(numbered(1, {large}));
  pair.at_far.wait_frames(1);
  pair.near.reset();
  EXPECT_EQ(large.use_count(), 1U);
}

TEST_P(ChannelConformance, QueuedBytesReturnToZero) {
  ChannelPair pair(GetParam());
  for (std::uint64_t i = 0; i < 10; ++i) pair.near->send(numbered(i, {at::zeros({1 << 20})}));
  pair.at_far.wait_frames(10);
  const Deadline end = patience();
  while (pair.near->queued_bytes() != 0 && !end.has_expired()) std::this_thread::yield();
  EXPECT_EQ(pair.near->queued_bytes(), 0U);
}

TEST_P(ChannelConformance, ProgressShowsWhatArrives) {
  ChannelPair pair(GetParam());
  pair.near->send(numbered(1));
  pair.at_far.wait_frames(1);
  EXPECT_GT(pair.far->progress().received, 0U);
}

// Regression: a sender that was writing while the channel closed subtracted its bytes from a count
// of 0.
TEST_P(ChannelConformance, NothingIsQueuedOnAClosedChannel) {
  const at::Tensor large = at::zeros({1 << 18});
  for (int round = 0; round < 50; ++round) {
    ChannelPair pair(GetParam());
    std::thread sender([&] {
      try {
        for (std::uint64_t i = 0;; ++i) pair.near->send(numbered(i, {large}));
      } catch (const Error&) {
        return;  // closed
      }
    });
    pair.at_far.wait_frames(1);
    pair.near->close();
    sender.join();
    ASSERT_EQ(pair.near->queued_bytes(), 0U) << "round " << round;
  }
}

TEST_P(ChannelConformance, QueuedBytesGrowWhileThePeerDoesNotRead) {
  Promised<bool> may_go;
  ChannelPair pair(GetParam(), {}, [&](const std::shared_ptr<Channel>&) {
    return Channel::Handlers{.on_frame = [&](Frame) { may_go.wait(); }};
  });
  for (std::uint64_t i = 0; i < 8; ++i) pair.near->send(numbered(i, {at::zeros({4 << 20})}));
  EXPECT_GT(pair.near->queued_bytes(), std::size_t{16} << 20);
  EXPECT_GE(pair.near->progress().underway, pair.near->queued_bytes());
  may_go.set(true);
}

TEST_P(ChannelConformance, AHandlerMayCloseItsChannel) {
  ChannelPair pair(GetParam(), {}, [&](std::shared_ptr<Channel> channel) {
    return Channel::Handlers{.on_frame = [channel](Frame) { channel->close(); }};
  });
  pair.near->send(numbered(1));
  EXPECT_EQ(pair.at_near.wait_closed().cause(), ErrorCause::peer_lost);
}

TEST_P(ChannelConformance, AHandlerMayDestroyItsChannel) {
  Promised<int> closed;
  auto held = std::make_shared<Promised<std::shared_ptr<Channel>>>();
  Channel::Handlers handlers{.on_frame = [held](Frame) { held->set(nullptr); },
                             .on_closed = [&](const Error&) { closed.set(1); }};
  ChannelPair pair(GetParam(), std::move(handlers));
  held->set(std::move(pair.near));
  pair.far->send(numbered(1));
  EXPECT_EQ(closed.wait(), 1);
  EXPECT_EQ(pair.at_far.wait_closed().cause(), ErrorCause::peer_lost);
}

TEST_P(ChannelConformance, AHandlerThatThrowsClosesItsChannel) {
  Promised<std::string> reason;
  ChannelPair pair(GetParam(), {}, [&](const std::shared_ptr<Channel>&) {
    return Channel::Handlers{
        .on_frame = [](Frame) { throw Error(ErrorCode::out_of_range, "no such thing"); },
        .on_closed = [&](const Error& error) { reason.set(error.message()); }};
  });
  pair.near->send(numbered(1));
  EXPECT_EQ(reason.wait(), "no such thing");
  EXPECT_EQ(pair.at_near.wait_closed().cause(), ErrorCause::peer_lost);
}

TEST_P(ChannelConformance, AnAcceptHandlerThatThrowsRefuses) {
  const auto listener =
      listen_on(GetParam(), [](const std::shared_ptr<Channel>&) -> Channel::Handlers {
        throw Error(ErrorCode::permission_denied, "not you");
      });
  Recorder near;
  std::shared_ptr<Channel> channel;
  try {
    channel = backend().connect({.address = listener->address(), .deadline = patience()},
                                near.handlers());
  } catch (const Error& error) {
    EXPECT_EQ(error.cause(), ErrorCause::peer_lost);
  }
  if (channel) {
    EXPECT_EQ(near.wait_closed().cause(), ErrorCause::peer_lost);
  }
}

// Regression: the handle of a refused channel was never told that the channel had ended, and its
// destructor waited for that.
TEST_P(ChannelConformance, ARefusedChannelCanBeDestroyedLater) {
  Promised<std::shared_ptr<Channel>> kept;
  const auto listener =
      listen_on(GetParam(), [&](const std::shared_ptr<Channel>& channel) -> Channel::Handlers {
        kept.set(channel);
        throw Error(ErrorCode::permission_denied, "not you");
      });
  Recorder near;
  std::shared_ptr<Channel> channel;
  try {
    channel = backend().connect({.address = listener->address(), .deadline = patience()},
                                near.handlers());
  } catch (const Error& error) {
    EXPECT_EQ(error.cause(), ErrorCause::peer_lost);
  }
  if (channel) near.wait_closed();
  std::shared_ptr<Channel> refused = kept.take();
  auto destroyed = std::make_shared<Promised<bool>>();
  std::thread destroyer([destroyed, channel = std::move(refused)]() mutable {
    channel.reset();
    destroyed->set(true);
  });
  if (destroyed->wait()) return destroyer.join();
  destroyer.detach();  // it would wait for ever
}

TEST_P(ChannelConformance, AListenerTakesManyConnectionsAndClosesThemInItsEnd) {
  Recorder far;
  std::vector<std::shared_ptr<Channel>> kept;
  Mutex mutex;
  auto listener = listen_on(GetParam(), [&](std::shared_ptr<Channel> channel) {
    Lock lock(mutex);
    kept.push_back(std::move(channel));
    return far.handlers();
  });
  std::vector<std::unique_ptr<Recorder>> near;
  std::vector<std::shared_ptr<Channel>> channels;
  for (std::uint64_t i = 0; i < 10; ++i) {
    near.push_back(std::make_unique<Recorder>());
    channels.push_back(backend().connect({.address = listener->address(), .deadline = patience()},
                                         near.back()->handlers()));
    channels.back()->send(numbered(i));
  }
  far.wait_frames(10);
  listener.reset();
  for (const auto& recorder : near)
    EXPECT_EQ(recorder->wait_closed().cause(), ErrorCause::peer_lost);
}

TEST_P(ChannelConformance, ConnectingWhereNobodyListensNamesPeerAndAddress) {
  std::string address;
  {
    ChannelPair pair(GetParam());
    address = pair.listener->address();
  }
  const Error error = testing::error_of(
      [&] { backend().connect({.address = address, .peer = "ps:3", .deadline = patience()}, {}); });
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_EQ(error.cause(), ErrorCause::peer_lost);
  EXPECT_EQ(error.origin(), "ps:3");
  EXPECT_THAT(error.message(), HasSubstr("ps:3 (" + address));
}

TEST_P(ChannelConformance, AnAddressIsFreeAgainAfterItsListener) {
  std::string address;
  {
    ChannelPair pair(GetParam());
    address = pair.listener->address();
    pair.near->send(numbered(1));
    pair.at_far.wait_frames(1);
  }
  EXPECT_EQ(listen_on(GetParam(), address, {})->address(), address);
}

TEST_P(ChannelConformance, ATakenAddressIsRefusedByName) {
  const auto listener = listen_on(GetParam(), {});
  try {
    listen_on(GetParam(), listener->address(), {});
    FAIL() << "listens";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
    EXPECT_THAT(error.message(), HasSubstr(listener->address()));
  }
}

TEST_P(ChannelConformance, PeersAreNamed) {
  ChannelPair pair(GetParam());
  EXPECT_EQ(pair.near->peer(), "worker:1 (" + pair.listener->address() + ", " + GetParam() + ")");
  EXPECT_THAT(pair.far->peer(), HasSubstr("(" + GetParam() + ")"));
}

INSTANTIATE_TEST_SUITE_P(All, ChannelConformance, ::testing::ValuesIn(backend_names()),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace cohort::rpc
