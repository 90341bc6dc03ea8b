// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/sockets/connect.h"

#include <gtest/gtest.h>

#include <future>
#include <optional>
#include <string>
#include <vector>

#include "cohort/net/socket.h"
#include "cohort/rpc/connection.h"
#include "cohort/rpc/reserved_port.h"
#include "cohort/testing/addresses_of_a_name.h"
#include "cohort/testing/raw_socket.h"
#include "cohort/testing/throws_error.h"
#include "cohort/testing/without_descriptors.h"

namespace cohort::rpc::internal {
namespace {

using testing::AddressesOfAName;
using testing::throws_error;

// Regression: the lookup waited as long as the name servers did.
TEST(Connect, ANameThatIsNotAnsweredEndsAtTheDeadline) {
  std::promise<void> answer;
  const net::GetAddresses silent = [answered = answer.get_future().share()](auto...) {
    answered.wait();
    return EAI_AGAIN;
  };
  const PeerName peer{"ps:0", "slow.test:80", "stream"};
  EXPECT_THAT([&] { connect_to(peer, Deadline::after(Duration::zero()), silent); },
              throws_error(ErrorCode::deadline_exceeded, "address of host 'slow.test' for ps:0"));
  answer.set_value();
}

TEST(Connect, KnowsWhereNobodyListens) {
  std::string address = "127.0.0.1:0";
  {
    const FileDescriptor server = net::listen_on(address);
    EXPECT_FALSE(is_refusing(address, Deadline::after(std::chrono::seconds(60))));
  }
  const ReservedPort port;
  address = "127.0.0.1:" + std::to_string(port.number());
  EXPECT_TRUE(is_refusing(address, Deadline::after(std::chrono::seconds(60))));
  EXPECT_THAT(
      [&] {
        connect_to({"ps:0", address, "stream"}, Deadline());
      },
      throws_error(ErrorCode::unavailable, "Connection refused, nobody listens there"));
}

// Regression: the error named the task: "is the task running?".
TEST(Connect, WithoutADescriptorTheProcessIsExhausted) {
  std::string address = "127.0.0.1:0";
  const FileDescriptor server = net::listen_on(address);
  std::optional<Error> error;
  try {
    const testing::WithoutDescriptors none;
    connect_to({"ps:0", address, "stream"}, Deadline());
  } catch (const Error& refused) {
    error = refused;
  }
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::resource_exhausted);
  EXPECT_NE(error->message().find("ulimit -n"), std::string::npos) << error->message();
}

// Regression: the first address, which did not answer, took the whole deadline.
TEST(Connect, AnAddressThatDoesNotAnswerLeavesTimeForTheOthers) {
  const testing::DeadAddress dead;
  const std::string port = net::parse_address(dead.address()).port;
  std::string address = "127.0.0.2:" + port;
  const FileDescriptor server = net::listen_on(address);
  // With ten addresses, the dead one gets a tenth of the time.
  std::vector<const char*> hosts(10, "127.0.0.2");
  hosts.front() = "127.0.0.1";
  const AddressesOfAName name(hosts, port);
  const Deadline deadline = Deadline::after(std::chrono::seconds(5));
  const FileDescriptor connected =
      connect_to({"ps:0", "name:" + port, "stream"}, name.list(), deadline);
  EXPECT_EQ(net::remote_address(connected.get()), address);
  EXPECT_FALSE(deadline.has_expired());
}

// Regression: the message was "expected worker:1 to accept, got: Temporary failure …; is the task
// running?"
TEST(Connect, OfAPeerSaysThatTheNameIsWhatFailed) {
  EXPECT_THAT(
      [] {
        connect_to({"worker:1", "peer.test:80", "stream"},
                   Deadline::after(std::chrono::seconds(60)), [](auto...) { return EAI_AGAIN; });
      },
      throws_error(ErrorCode::unavailable,
                   "expected the address of host 'peer.test' for worker:1"));
}

// Regression: without a descriptor the resolver reports that the name server did not answer, and so
// did the error.
TEST(Connect, WithoutADescriptorIsALackOfThisProcess) {
  const net::FoundAddresses none{nullptr, gai_strerror(EAI_AGAIN), true};
  const testing::WithoutDescriptors without;
  const Error error = unresolved_error({"worker:1", "peer.test:80", "grpc"}, none);
  EXPECT_EQ(error.code(), ErrorCode::resource_exhausted) << error.what();
  EXPECT_EQ(error.origin(), "");
}

}  // namespace
}  // namespace cohort::rpc::internal
