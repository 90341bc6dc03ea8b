// SPDX-License-Identifier: Apache-2.0
// One port for control and data, and the limits for strangers there.
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/core/log.h"
#include "cohort/rpc/control.h"
#include "cohort/rpc/frames/channel_end.h"
#include "cohort/rpc/frames/outgoing_bytes.h"
#include "cohort/rpc/requester.h"
#include "cohort/testing/channel_fixture.h"
#include "cohort/testing/raw_socket.h"
#include "cohort/testing/throws_error.h"
#include "cohort/testing/without_threads.h"

namespace cohort::rpc {
namespace {

using cohort::testing::patience;
using cohort::testing::RawSocket;
using cohort::testing::throws_error;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const std::string_view kSettings("\0\0\0\4\0\0\0\0\0", 9);
constexpr auto kHour = std::chrono::hours(1);

// Accepts the handshakes, and the calls, of coordinator 7.
class StrictService final : public ControlService, public CoordinatorSession {
 public:
  HandshakeReply handshake(const HandshakeRequest& request, const Caller& caller) override {
    check(request.coordinator_incarnation);
    address = caller.address;
    return {};
  }
  TaskHealth health() override { return {}; }
  std::shared_ptr<CoordinatorSession> session_of(const Caller& caller) override {
    check(caller.coordinator_incarnation);
    return {std::shared_ptr<void>(), this};
  }
  void shutdown(const Caller& caller, std::chrono::milliseconds) override {
    check(caller.coordinator_incarnation);
  }
  void register_function(const FunctionBody& body) override {
    program_bytes = body.programs.at(0).size();
  }
  void create_variables(const std::vector<VariableSpec>&) override {}
  void set_membership(const Membership&) override {}
  void place_variables(const Placement&) override {}
  void create_iterator(const IteratorSpec&) override {}
  void release(const std::vector<std::uint64_t>&) override {}

  std::string address;
  std::size_t program_bytes = 0;

 private:
  static void check(std::uint64_t incarnation) {
    COHORT_CHECK(incarnation == 7, ErrorCode::failed_precondition, "expected 7");
  }
};

class TaskServerTest : public ::testing::TestWithParam<const char*> {
 protected:
  static constexpr std::uint16_t kGreeting = 1;

  void serve(StrangerLimits limits = {.patience = kHour}, const std::string& data_address = "") {
    server = serve_task({.address = "127.0.0.1:0",
                         .data_address = data_address,
                         .backends = {"stream", "grpc"},
                         .accept = [this](auto channel) { return echo(std::move(channel)); },
                         .limits = limits},
                        service);
  }
  // Answers every frame with itself, and admits a peer that sends a hello.
  static Channel::Handlers echo(std::shared_ptr<Channel> channel) {
    return {.on_frame = [channel](Frame frame) {
      if (frame.type == kGreeting) channel->admit();
      frame.role = Frame::Role::response;
      channel->send(std::move(frame));
    }};
  }
  std::unique_ptr<ControlClient> client(std::uint64_t coordinator) {
    return control_client(server->address(), "ps:0", coordinator);
  }
  void shake(ControlClient& with) {
    with.handshake({.expected_task = "ps:0", .coordinator_incarnation = 7}, patience());
  }
  std::shared_ptr<Requester> connect(const std::string& backend) {
    return Requester::connect(
        backend_of(backend), {.address = server->address(), .peer = "ps:0", .deadline = patience()},
        {}, {});
  }
  static Frame frame_of(std::int64_t bytes, std::uint16_t type = 0) {
    return {.type = type, .tensors = {at::zeros({bytes}, at::kByte)}};
  }
  bool await_strangers(std::size_t count) {
    const Deadline deadline = patience();
    while (server->strangers() != count) {
      if (deadline.has_expired()) return false;
      std::this_thread::yield();
    }
    return true;
  }

  StrictService service;
  std::unique_ptr<ControlServer> server;
};

// The number of threads of gRPC's servers in this process.
std::size_t grpc_server_threads() {
  std::size_t count = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(thread.path() / "comm"), name);
    if (name.starts_with("grpcpp_sync")) ++count;
  }
  return count;
}

// They would slow down the calls that this process makes.
TEST(ControlServerTest, HasNoThreadsOfGrpcBeforeTheFirstCaller) {
  StrictService service;
  const std::size_t before = grpc_server_threads();
  const auto server = serve_control("127.0.0.1:0", service);
  for (int i = 0; i < 20; ++i) {
    RawSocket stranger = RawSocket::connected(server->address());
    stranger.write(std::string_view("x"));
    EXPECT_TRUE(stranger.await_end());
  }
  EXPECT_EQ(grpc_server_threads(), before);
  control_client(server->address(), "chief:0", 0)->health(patience());
  EXPECT_GT(grpc_server_threads(), before);
}

INSTANTIATE_TEST_SUITE_P(Backends, TaskServerTest, ::testing::Values("stream", "grpc"),
                         [](const auto& one) { return std::string(one.param); });

TEST_P(TaskServerTest, ControlAndDataShareAPort) {
  serve();
  const auto control = client(7);
  shake(*control);
  const auto data = connect(GetParam());
  EXPECT_EQ(data->call(frame_of(1000, kGreeting), patience(), "greeting").tensors[0].numel(), 1000);
  EXPECT_NO_THROW(control->release({}, patience()));
  EXPECT_TRUE(await_strangers(0));
}

// Regression: over gRPC the address of every caller was "fd:17".
TEST_P(TaskServerTest, ACallersAddressIsKnown) {
  serve();
  shake(*client(7));
  EXPECT_THAT(service.address, StartsWith("127.0.0.1:"));
}

TEST_P(TaskServerTest, AFrameOfAStrangerIsSmall) {
  serve({.bytes_max = 4096, .patience = kHour});
  const auto stranger = connect(GetParam());
  EXPECT_EQ(stranger->call(frame_of(100), patience(), "a small one").tensors[0].numel(), 100);
  EXPECT_THAT([&] { stranger->call(frame_of(1 << 20), patience(), "a large one"); },
              throws_error(ErrorCode::unavailable, ""));
  const auto friendly = connect(GetParam());
  friendly->call(frame_of(1, kGreeting), patience(), "greeting");
  EXPECT_EQ(friendly->call(frame_of(1 << 20), patience(), "a large one").tensors[0].numel(),
            1 << 20);
}

TEST_P(TaskServerTest, AChannelThatHasGreetedIsNotEnded) {
  serve({.patience = std::chrono::milliseconds(100)});
  const auto data = connect(GetParam());
  data->call(frame_of(1, kGreeting), patience(), "greeting");
  EXPECT_TRUE(RawSocket::connected(server->address()).await_end()) << "came later, ends earlier";
  EXPECT_NO_THROW(data->call(frame_of(1), patience(), "another"));
}

class StrangerTest : public TaskServerTest {};
INSTANTIATE_TEST_SUITE_P(Any, StrangerTest, ::testing::Values(""),
                         [](const auto&) { return std::string("Backend"); });

TEST_P(StrangerTest, WhoSaysNothingOrTooLittleIsEndedInTime) {
  serve({.patience = std::chrono::milliseconds(50)});
  for (const std::string_view bytes :
       {std::string_view(), std::string_view("COH"), std::string_view("COHF"),
        kPreface.substr(0, 10), kPreface}) {
    RawSocket stranger = RawSocket::connected(server->address());
    stranger.write(bytes);
    EXPECT_TRUE(stranger.await_end()) << bytes;
  }
  EXPECT_TRUE(await_strangers(0));
}

TEST_P(StrangerTest, WhoIsNeitherHttp2NorFramesIsEndedAtOnce) {
  serve();
  for (const char* bytes :
       {"GET / HTTP/1.1\r\n", "C\n", "COHG", "PRI * HTTP/1.0", "\x16\x03\x01"}) {
    RawSocket stranger = RawSocket::connected(server->address());
    stranger.write(std::string_view(bytes));
    EXPECT_TRUE(stranger.await_end()) << bytes;
  }
}

TEST_P(StrangerTest, PiecesOfAPrefaceArePutTogether) {
  serve();
  RawSocket slow = RawSocket::connected(server->address());
  for (const char letter : std::string(kPreface) + std::string(kSettings))
    slow.write(std::string_view(&letter, 1));
  RawSocket other = RawSocket::connected(server->address());
  other.write(std::string_view("x"));
  EXPECT_TRUE(other.await_end());
  EXPECT_FALSE(slow.has_ended());
  EXPECT_TRUE(await_strangers(1));
}

std::string bytes_of(Frame frame) {
  internal::OutgoingBytes bytes;
  bytes.append(std::move(frame), false);
  bytes.seal(0);
  std::array<std::span<const std::byte>, 16> parts;
  std::string all;
  const std::size_t count = bytes.front(parts);
  for (std::size_t i = 0; i < count; ++i)
    all.append(reinterpret_cast<const char*>(parts[i].data()), parts[i].size());
  return all;
}

std::size_t threads() {
  const std::filesystem::directory_iterator all("/proc/self/task");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

// Regression: each of them took a thread, 170 at a time.
TEST_P(StrangerTest, WhoSendsAPartOfAFrameTakesNoThread) {
  serve();
  const std::string frame = bytes_of(frame_of(100));
  const std::size_t before = threads();
  std::vector<RawSocket> strangers;
  for (std::size_t i = 0; i < 100; ++i) {
    strangers.push_back(RawSocket::connected(server->address()));
    strangers.back().write(std::string_view(frame).substr(0, 4 + i));
  }
  RawSocket last = RawSocket::connected(server->address());
  last.write(std::string_view("x"));
  EXPECT_TRUE(last.await_end()) << "the acceptor handles connections in their order";
  EXPECT_TRUE(await_strangers(100));
  // Threads of the tests before may have ended in the meantime.
  EXPECT_LE(threads(), before);
}

TEST_P(StrangerTest, PiecesOfAFrameArePutTogether) {
  serve();
  RawSocket slow = RawSocket::connected(server->address());
  for (const char letter : bytes_of(frame_of(100, kGreeting)))
    slow.write(std::string_view(&letter, 1));
  EXPECT_TRUE(await_strangers(0));
  EXPECT_FALSE(slow.has_ended());
}

TEST_P(StrangerTest, WhoLeavesAfterAPartOfAFrameIsForgotten) {
  serve();
  RawSocket stranger = RawSocket::connected(server->address());
  stranger.write(std::string_view("COHF"));
  EXPECT_TRUE(await_strangers(1));
  stranger = RawSocket();  // closes it
  EXPECT_TRUE(await_strangers(0));
}

// Each of them takes a thread, since its first frame has arrived.
TEST_P(TaskServerTest, TheOldestGoesOfManyWhoDoNotGreet) {
  serve();
  std::vector<std::shared_ptr<Requester>> strangers;
  for (std::size_t i = 0; i <= internal::AcceptedChannels::kStrangersMax; ++i) {
    strangers.push_back(connect(GetParam()));
    strangers.back()->call(frame_of(100), patience(), "no greeting");
  }
  EXPECT_THAT([&] { strangers.front()->call(frame_of(100), patience(), "another"); },
              throws_error(ErrorCode::unavailable, ""));
  EXPECT_NO_THROW(strangers.back()->call(frame_of(100), patience(), "another"));
  const auto friendly = connect(GetParam());
  EXPECT_NO_THROW(friendly->call(frame_of(1, kGreeting), patience(), "greeting"));
}

TEST_P(StrangerTest, TheOldestGoesWhenThereAreTooMany) {
  serve({.patience = kHour, .connections_max = 4});
  std::vector<RawSocket> sockets;
  for (int i = 0; i < 6; ++i) sockets.push_back(RawSocket::connected(server->address()));
  EXPECT_TRUE(sockets[0].await_end());
  EXPECT_TRUE(sockets[1].await_end());
  EXPECT_TRUE(await_strangers(4));
  for (std::size_t i = 2; i < 6; ++i) EXPECT_FALSE(sockets[i].has_ended()) << i;
}

TEST_P(StrangerTest, HealthAloneIsNoHandshake) {
  serve();
  const auto asks = client(0);
  EXPECT_NO_THROW(asks->health(patience()));
  EXPECT_TRUE(await_strangers(1));
  const auto shakes = client(7);
  shake(*shakes);
  EXPECT_TRUE(await_strangers(1));
  shake(*asks);
  EXPECT_TRUE(await_strangers(0));
}

TEST_P(StrangerTest, HealthDoesNotKeepAConnection) {
  serve({.patience = std::chrono::seconds(1)});  // in which the question is answered
  const auto asks = client(0);
  EXPECT_NO_THROW(asks->health(patience()));
  EXPECT_TRUE(await_strangers(0));
}

// Regression: a caller that asked at that moment got the error that the task was lost.
TEST_P(StrangerTest, HealthIsAnsweredWhileItsConnectionsEnd) {
  serve({.patience = std::chrono::milliseconds(200)});
  const auto asks = client(0);
  const Deadline several_ends = Deadline::after(std::chrono::seconds(1));
  while (!several_ends.has_expired()) ASSERT_NO_THROW(asks->health(patience()));
}

// gRPC renews a connection on its own, without a handshake.
TEST_P(StrangerTest, ACallOfTheCoordinatorMakesItsConnectionKnown) {
  serve();
  const auto again = client(7);
  again->health(patience());
  EXPECT_TRUE(await_strangers(0));
  const auto large = client(7);
  large->register_function({.programs = {Bytes(1 << 20)}}, patience());
  EXPECT_EQ(service.program_bytes, 1U << 20);
  EXPECT_TRUE(await_strangers(0));
}

TEST_P(StrangerTest, TooManyBytesOfHttp2AreEnded) {
  serve({.bytes_max = 1000, .patience = kHour});
  RawSocket stranger = RawSocket::connected(server->address());
  stranger.write(kPreface);
  stranger.write(kSettings);
  const std::string_view update("\0\0\4\x8\0\0\0\0\0\0\0\0\1", 13);  // of the window
  for (int i = 0; i < 100; ++i) stranger.write(update);
  EXPECT_TRUE(stranger.await_end());
}

TEST_P(StrangerTest, ALargeHandshakeIsRefused) {
  serve({.bytes_max = 4096, .patience = kHour});
  HandshakeRequest request{.coordinator_incarnation = 7};
  request.caller.task = std::string(20'000, 'x');
  try {
    client(7)->handshake(request, patience());
    ADD_FAILURE() << "it was accepted";
  } catch (const Error& error) {
    // The acceptor may close the connection before the refusal is sent.
    EXPECT_TRUE(error.code() == ErrorCode::resource_exhausted ||
                error.code() == ErrorCode::unavailable)
        << error.what();
  }
  EXPECT_NO_THROW(client(0)->health(patience())) << "the server still serves others";
}

TEST_P(StrangerTest, ARefusedCallIsLoggedWithTheAddress) {
  serve();
  std::string lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines.append(line).append("\n"); });
  EXPECT_ANY_THROW(client(3)->shutdown(std::chrono::milliseconds(0), patience()));
  set_log_sink(nullptr);
  EXPECT_THAT(lines, HasSubstr("refused 127.0.0.1:"));
  EXPECT_THAT(lines, HasSubstr("a shutdown: expected 7"));
}

// gRPC closes such a connection without a log line.
TEST_P(StrangerTest, WhoLeavesWithoutACallIsLogged) {
  testing::Promised<std::string> refused;
  set_log_sink([&](LogLevel, std::string_view line) { refused.set(std::string(line)); });
  serve();
  RawSocket peer = RawSocket::connected(server->address());
  peer.write(std::string(kPreface) + std::string(1000, 'x'));
  EXPECT_TRUE(peer.await_end());
  EXPECT_THAT(refused.wait(), HasSubstr("refused 127.0.0.1:"));
  server.reset();
  set_log_sink(nullptr);
}

TEST_P(StrangerTest, WhoAskedForHealthAloneLeavesWithoutALine) {
  std::string lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines.append(line).append("\n"); });
  serve();
  client(0)->health(patience());
  EXPECT_TRUE(await_strangers(0));
  server.reset();
  set_log_sink(nullptr);
  EXPECT_EQ(lines, "");
}

// Regression: the refusals of the last minute were never counted in the log.
TEST_P(StrangerTest, TheEndTellsHowManyMoreWereRefused) {
  serve();
  std::string lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines.append(line).append("\n"); });
  for (int i = 0; i < 3; ++i)
    EXPECT_ANY_THROW(client(3)->shutdown(std::chrono::milliseconds(0), patience()));
  server.reset();
  set_log_sink(nullptr);
  EXPECT_THAT(lines, HasSubstr("refused 2 more within a minute"));
}

TEST_P(StrangerTest, ADataPortTakesFramesAndTheOtherHttp2Only) {
  RawSocket held;
  const std::string data_address = held.listen();
  held.reset();
  serve({.patience = kHour}, data_address);
  EXPECT_NO_THROW(client(0)->health(patience()));
  const auto data =
      Requester::connect(backend_of("stream"),
                         {.address = data_address, .peer = "ps:0", .deadline = patience()}, {}, {});
  EXPECT_NO_THROW(data->call(frame_of(1, kGreeting), patience(), "greeting"));
  RawSocket frames = RawSocket::connected(server->address());
  frames.write(std::string_view("COHF"));
  EXPECT_TRUE(frames.await_end());
  RawSocket http2 = RawSocket::connected(data_address);
  http2.write(kPreface);
  EXPECT_TRUE(http2.await_end());
}

TEST_P(StrangerTest, ATakenDataPortIsRefusedByName) {
  RawSocket held;
  const std::string data_address = held.listen();
  EXPECT_THAT([&] { serve({}, data_address); },
              throws_error(ErrorCode::resource_exhausted, data_address));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // see WithoutThreads
// The connection closed, as if nobody listened: exit code 69, "is this its address?".
TEST_P(TaskServerTest, ACallerIsToldThatThereIsNoThreadForItsChannel) {
  if (std::string(GetParam()) != "stream") GTEST_SKIP() << "gRPC has its own threads for channels";
  serve();
  const auto data = connect(GetParam());  // handed over with its first bytes
  const cohort::testing::WithoutThreads none;
  EXPECT_THAT([&] { data->call(frame_of(1, kGreeting), patience(), "greeting"); },
              throws_error(ErrorCode::resource_exhausted, "ulimit -u"));
}
#endif

// Over grpc the channels of the data plane are calls to the same server.
TEST_P(TaskServerTest, ChannelsOutliveTheEndOfTheControlPlane) {
  serve();
  const auto data = connect(GetParam());
  data->call(frame_of(1, kGreeting), patience(), "greeting");
  server->stop(patience());
  EXPECT_NO_THROW(data->call(frame_of(1), patience(), "another"));
  EXPECT_THAT([&] { client(7)->health(patience()); }, throws_error(ErrorCode::unavailable, ""));
  server.reset();
  EXPECT_THAT([&] { data->call(frame_of(1), patience(), "another"); },
              throws_error(ErrorCode::unavailable, ""));
}

}  // namespace
}  // namespace cohort::rpc
