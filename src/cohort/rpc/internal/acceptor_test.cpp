// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/internal/acceptor.h"

#include <gtest/gtest.h>

#include <thread>

#include "cohort/testing/channel_fixture.h"
#include "cohort/testing/raw_socket.h"

namespace cohort::rpc::internal {
namespace {

using cohort::testing::patience;
using cohort::testing::Promised;
using cohort::testing::RawSocket;

bool await_strangers(const Acceptor& acceptor, std::size_t count) {
  const Deadline deadline = patience();
  while (acceptor.strangers() != count) {
    if (deadline.has_expired()) return false;
    std::this_thread::yield();
  }
  return true;
}

// What comes while a connection is handed over is seen all at once. The second one of these failed,
// and the third one's bytes were never looked at.
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
  peers[0].write(std::string_view("COHF"));
  is_first_here.wait();
  for (const std::size_t i : {1U, 2U}) peers[i].write(std::string_view("COHF"));
  may_go_on.set(true);
  is_third_here.wait();
}

}  // namespace
}  // namespace cohort::rpc::internal
