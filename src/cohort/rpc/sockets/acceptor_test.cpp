// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/sockets/acceptor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <thread>

#include "cohort/core/log.h"
#include "cohort/rpc/frames/channel_end.h"
#include "cohort/rpc/process_room.h"
#include "cohort/rpc/sockets/connect.h"
#include "cohort/testing/channel_fixture.h"
#include "cohort/testing/error_of.h"
#include "cohort/testing/raw_socket.h"
#include "cohort/testing/throws_error.h"
#include "cohort/testing/without_descriptors.h"
#include "cohort/testing/without_threads.h"

namespace cohort::rpc::internal {
namespace {

using cohort::testing::patience;
using cohort::testing::Promised;
using cohort::testing::RawSocket;
using cohort::testing::throws_error;
using ::testing::AllOf;
using ::testing::HasSubstr;

bool await_strangers(const Acceptor& acceptor, std::size_t count) {
  const Deadline deadline = patience();
  while (acceptor.strangers() != count) {
    if (deadline.has_expired()) return false;
    std::this_thread::yield();
  }
  return true;
}

Error error_of_listening(const std::string& address) {
  return testing::error_of([&] { const Acceptor acceptor({.ports = {{.address = address}}}); });
}

TEST(Acceptor, MalformedAddressesAreRefused) {
  for (const char* address :
       {"", "localhost", ":80", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "::1:80"}) {
    EXPECT_EQ(error_of_listening(address).code(), ErrorCode::invalid_argument) << address;
  }
}

TEST(Acceptor, AnotherMachinesAddressIsNotListenedOn) {
  const Error error = error_of_listening("192.0.2.1:0");  // reserved for documents
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.message(), HasSubstr("192.0.2.1:0"));
}

TEST(Acceptor, APortTakenByAnotherProgramIsRefused) {
  RawSocket other;
  const std::string address = other.listen();
  const Error error = error_of_listening(address);
  EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
  EXPECT_THAT(error.message(), HasSubstr(address));
}

// Regression: connections that arrive during a hand-over are reported in one batch. When the
// hand-over of the second one failed, the bytes of the third were never read.
TEST(Acceptor, AConnectionThatCannotBeHandedOverCostsNoOther) {
  Promised<bool> is_first_here, may_go_on, is_third_here;
  int taken = 0;
  const auto take = [&](FileDescriptor, const std::shared_ptr<Visitor>&) {
    switch (++taken) {
      case 1:
        is_first_here.set(true);
        may_go_on.wait();
        return;
      case 2:
        throw Error(ErrorCode::resource_exhausted, "no more threads");
      default:
        is_third_here.set(true);
    }
  };
  Acceptor acceptor({.ports = {{.address = "127.0.0.1:0", .take_frames = take}},
                     .limits = {.patience = std::chrono::hours(1)},
                     .refusals = std::make_shared<RefusalLog>()});
  std::vector<RawSocket> peers;
  for (int i = 0; i < 3; ++i) peers.push_back(RawSocket::connected(acceptor.address(0)));
  ASSERT_TRUE(await_strangers(acceptor, 3));
  const std::string broken = "COHF" + std::string(44, 'x');  // handed over at once
  peers[0].write(broken);
  is_first_here.wait();
  for (const std::size_t i : {1U, 2U}) peers[i].write(broken);
  may_go_on.set(true);
  is_third_here.wait();
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The sanitizers read memory through pipes, and have their own threads.

// Lowers this process's limit of descriptors for a scope.
class LowLimit {
 public:
  LowLimit() {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit low = before_;
    low.rlim_cur = static_cast<rlim_t>(FileDescriptor(::dup(0)).get());  // none above those in use
    setrlimit(RLIMIT_NOFILE, &low);
  }
  ~LowLimit() { setrlimit(RLIMIT_NOFILE, &before_); }
  LowLimit(const LowLimit&) = delete;
  LowLimit& operator=(const LowLimit&) = delete;

 private:
  rlimit before_{};
};

// Regression: the log had "error 24", ten times a second.
TEST(Acceptor, WithoutDescriptorsItSaysWhatHelps) {
  Promised<std::string> warned;
  set_log_sink([&](LogLevel, std::string_view line) { warned.set(std::string(line)); });
  {
    Acceptor acceptor(
        {.ports = {{.address = "127.0.0.1:0"}}, .refusals = std::make_shared<RefusalLog>()});
    RawSocket caller;
    const LowLimit low;
    caller.connect(acceptor.address(0));
    EXPECT_THAT(warned.wait(), AllOf(HasSubstr("cannot accept on " + acceptor.address(0)),
                                     HasSubstr("Too many open files; raise this process's limit"),
                                     HasSubstr("ulimit -n")));
  }
  set_log_sink(nullptr);
}

// Regression: strangers kept the job's own tasks out.
TEST(Acceptor, WithoutDescriptorsTheOldestStrangerGoes) {
  Acceptor acceptor({.ports = {{.address = "127.0.0.1:0"}},
                     .limits = {.patience = std::chrono::hours(1)},
                     .refusals = std::make_shared<RefusalLog>()});
  RawSocket oldest = RawSocket::connected(acceptor.address(0));
  ASSERT_TRUE(await_strangers(acceptor, 1));
  RawSocket next;
  const LowLimit low;
  next.connect(acceptor.address(0));
  EXPECT_TRUE(oldest.await_end());
  EXPECT_TRUE(await_strangers(acceptor, 1));
  EXPECT_FALSE(next.has_ended());
}

// Regression: they held all descriptors, so that this process could not connect to other tasks.
TEST(Acceptor, StrangersLeaveDescriptorsForOwnConnections) {
  const cohort::testing::WithoutDescriptors few(48);
  Acceptor acceptor({.ports = {{.address = "127.0.0.1:0"}},
                     .limits = {.patience = std::chrono::hours(1)},
                     .refusals = std::make_shared<RefusalLog>()});
  std::vector<RawSocket> strangers;
  for (int i = 0; i < 12; ++i) strangers.push_back(RawSocket::connected(acceptor.address(0)));
  EXPECT_TRUE(strangers.at(3).await_end());
  EXPECT_LE(acceptor.strangers(), 8U);
  EXPECT_GE(free_descriptors(), 12U);
}

// Regression: the error was an internal error of the called task.
TEST(Acceptor, ACallerWithoutDescriptorsHearsThatItIsItsOwnLimit) {
  const LowLimit low;
  EXPECT_THAT(
      [] {
        connect_to({"ps:0", "127.0.0.1:1", "stream"}, patience());
      },
      throws_error(ErrorCode::resource_exhausted, "raise this process's limit"));
}

// Regression: the error had the code unknown, as if Cohort were at fault.
TEST(StartThread, WithoutMemorySaysWhatHelps) {
  const testing::WithoutThreads none;
  EXPECT_THAT([] { start_thread([] {}).join(); },
              throws_error(ErrorCode::resource_exhausted, "cannot start a thread"));
}

// Regression: the handlers kept the channel alive for ever.
TEST(StartThread, AChannelWithoutOneHasEnded) {
  const testing::WithoutThreads none;
  const auto held = std::make_shared<int>();
  std::vector<ErrorCode> ends;
  const auto accept = [&](const std::shared_ptr<Channel>&) -> Channel::Handlers {
    return {.on_frame = [held](Frame) {},
            .on_closed = [&](const Error& error) { ends.push_back(error.code()); }};
  };
  const auto listener = listen_inprocess("", accept);
  EXPECT_THAT([&] { backend_of("inprocess").connect({.address = listener->address()}, {}); },
              throws_error(ErrorCode::resource_exhausted, "cannot start a thread"));
  EXPECT_THAT(ends, ::testing::ElementsAre(ErrorCode::resource_exhausted));
  EXPECT_EQ(held.use_count(), 1);
}
#endif

}  // namespace
}  // namespace cohort::rpc::internal
