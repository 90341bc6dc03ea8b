// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/sockets/socket.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <future>
#include <optional>
#include <vector>

#include "cohort/rpc/refusal.h"
#include "cohort/rpc/reserved_port.h"
#include "cohort/rpc/sockets/name_lookup.h"
#include "cohort/testing/raw_socket.h"
#include "cohort/testing/throws_error.h"
#include "cohort/testing/without_descriptors.h"

namespace cohort::rpc::internal {
namespace {

using testing::throws_error;

// Listens on all addresses of a name, with one port.
class AddressesOfAName {
 public:
  AddressesOfAName(const std::vector<const char*>& hosts, const std::string& port)
      : sockets_(hosts.size()), list_(hosts.size()) {
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      sockets_[i].sin_family = AF_INET;
      sockets_[i].sin_port = htons(static_cast<std::uint16_t>(std::stoi(port)));
      inet_pton(AF_INET, hosts[i], &sockets_[i].sin_addr);
      list_[i].ai_family = AF_INET;
      list_[i].ai_addr = reinterpret_cast<sockaddr*>(&sockets_[i]);
      list_[i].ai_addrlen = sizeof sockets_[i];
      if (i > 0) list_[i - 1].ai_next = &list_[i];
    }
  }
  AddressesOfAName(const AddressesOfAName&) = delete;
  AddressesOfAName& operator=(const AddressesOfAName&) = delete;
  const addrinfo& list() const { return list_[0]; }

 private:
  std::vector<sockaddr_in> sockets_;
  std::vector<addrinfo> list_;
};

// Regression: the first address was free, so a task shared its name and port with another program.
TEST(Socket, KnowsTheAddressesOfThisHost) {
  for (const char* address : {"127.0.0.1:80", "127.3.4.5:80", "[::1]:80", "[::ffff:127.0.0.1]:80"})
    EXPECT_TRUE(is_this_host(address)) << address;
  for (const char* address :
       {"192.0.2.1:80", "[2001:db8::1]:80", "a peer that left", "fd:7", "", "example.org:80"})
    EXPECT_FALSE(is_this_host(address)) << address;
}

// Regression: the lookup waited as long as the name servers did.
TEST(Socket, ANameThatIsNotAnsweredEndsAtTheDeadline) {
  std::promise<void> answer;
  const GetAddresses silent = [answered = answer.get_future().share()](auto...) {
    answered.wait();
    return EAI_AGAIN;
  };
  const PeerName peer{"ps:0", "slow.test:80", "stream"};
  EXPECT_THAT([&] { connect_to(peer, Deadline::after(Duration::zero()), silent); },
              throws_error(ErrorCode::deadline_exceeded, "address of host 'slow.test' for ps:0"));
  answer.set_value();
}

TEST(Socket, KnowsWhereNobodyListens) {
  std::string address = "127.0.0.1:0";
  {
    const FileDescriptor server = listen_on(address);
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
TEST(Socket, WithoutADescriptorTheProcessIsExhausted) {
  std::string address = "127.0.0.1:0";
  const FileDescriptor server = listen_on(address);
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
TEST(Socket, AnAddressThatDoesNotAnswerLeavesTimeForTheOthers) {
  const testing::DeadAddress dead;
  const std::string port = parse_address(dead.address()).port;
  std::string address = "127.0.0.2:" + port;
  const FileDescriptor server = listen_on(address);
  // With ten addresses, the dead one gets a tenth of the time.
  std::vector<const char*> hosts(10, "127.0.0.2");
  hosts.front() = "127.0.0.1";
  const AddressesOfAName name(hosts, port);
  const Deadline deadline = Deadline::after(std::chrono::seconds(5));
  const FileDescriptor connected =
      connect_to({"ps:0", "name:" + port, "stream"}, name.list(), deadline);
  EXPECT_EQ(remote_address(connected.get()), address);
  EXPECT_FALSE(deadline.has_expired());
}

TEST(Socket, APortIsTakenWhereOneAddressOfTheNameIs) {
  std::string taken = "127.0.0.2:0";
  const FileDescriptor other = listen_on(taken);
  const HostPort name{"localhost", parse_address(taken).port};
  const AddressesOfAName both({"127.0.0.1", "127.0.0.2"}, name.port);
  EXPECT_THAT([&] { check_all_free(both.list(), name); },
              throws_error(ErrorCode::already_exists, "got localhost:" + name.port));
  const AddressesOfAName free({"127.0.0.1", "127.0.0.3"}, name.port);
  EXPECT_NO_THROW(check_all_free(free.list(), name));
}

// One address of the name is missing on this machine, as with IPv6 if it is switched off.
TEST(Socket, AnAddressThatTheMachineLacksIsNoMatterWhereAnotherIsThere) {
  std::string any = "127.0.0.1:0";
  listen_on(any);
  const HostPort name{"here", parse_address(any).port};
  const AddressesOfAName one({"192.0.2.1", "127.0.0.1"}, name.port);
  EXPECT_NO_THROW(check_all_free(one.list(), name));
  const AddressesOfAName none({"192.0.2.1", "192.0.2.1"}, name.port);
  EXPECT_THAT([&] { check_all_free(none.list(), name); },
              throws_error(ErrorCode::invalid_argument, "an address of this machine"));
}

}  // namespace
}  // namespace cohort::rpc::internal
