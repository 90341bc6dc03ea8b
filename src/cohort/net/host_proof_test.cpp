// SPDX-License-Identifier: Apache-2.0
#include "cohort/net/host_proof.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <memory>
#include <string>

#include "cohort/core/error.h"
#include "cohort/net/name_lookup.h"
#include "cohort/net/socket.h"
#include "cohort/testing/faulty_proxy.h"

namespace cohort::net {
namespace {

constexpr int kMillisecondsMax = 60'000;

const addrinfo& number_of(const std::string& address) {
  static std::shared_ptr<const addrinfo> list;
  list = look_up(parse_address(address), false, Deadline::after(Duration::zero()))->list;
  return *list;
}

// The two ends of a connection from `to` to `listening`; a proxy may lie between them.
struct Ends {
  Ends(const std::string& to, const FileDescriptor& listening) {
    start_connecting(number_of(to), client);
    pollfd awaited{.fd = listening.get(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&awaited, 1, kMillisecondsMax), 1);
    server = FileDescriptor(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_TRUE(server.is_open());
  }
  bool are_on_one_host() const {
    const HostProof near = prove_host(client.get());
    const HostProof far = prove_host(server.get());
    EXPECT_EQ(net::are_on_one_host(near, far), net::are_on_one_host(far, near));
    return net::are_on_one_host(near, far);
  }
  FileDescriptor client;
  FileDescriptor server;
};

TEST(HostProof, DirectConnectionsOfThisHostAreProven) {
  for (const char* host : {"127.0.0.1", "[::1]"}) {
    std::string address = std::string(host) + ":0";
    try {
      const FileDescriptor listening = listen_on(address);
      EXPECT_TRUE(Ends(address, listening).are_on_one_host()) << host;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << "a host without IPv6 is fine";
    }
  }
}

// One end sees 127.0.0.1, and the other one ::ffff:127.0.0.1.
TEST(HostProof, ASocketForBothFamiliesSeesTheSameAddresses) {
  std::string address = "[::]:0";
  FileDescriptor listening;
  try {
    listening = listen_on(address);
  } catch (const Error&) {
    GTEST_SKIP() << "a host without IPv6";
  }
  EXPECT_TRUE(Ends("127.0.0.1:" + parse_address(address).port, listening).are_on_one_host());
}

// Regression: both ends saw an address of their own host, so tensors had no checksums.
TEST(HostProof, AProxyOnLoopbackIsNoProof) {
  std::string address = "127.0.0.1:0";
  const FileDescriptor listening = listen_on(address);
  testing::FaultyProxy proxy;
  proxy.set_target(address);
  EXPECT_FALSE(Ends(proxy.address(), listening).are_on_one_host());
}

TEST(HostProof, AnyDifferenceIsNoProof) {
  const HostProof one{.host = 1, .local = 2, .remote = 3};
  EXPECT_TRUE(are_on_one_host(one, {.host = 1, .local = 3, .remote = 2}));
  EXPECT_FALSE(are_on_one_host(one, {.host = 4, .local = 3, .remote = 2}));  // boot or namespace
  EXPECT_FALSE(are_on_one_host(one, {.host = 1, .local = 4, .remote = 2}));
  EXPECT_FALSE(are_on_one_host(one, {.host = 1, .local = 3, .remote = 4}));
  EXPECT_FALSE(are_on_one_host({}, {}));
}

TEST(HostProof, ASocketWithoutAnotherEndProvesNothing) {
  std::string address = "127.0.0.1:0";
  EXPECT_EQ(prove_host(listen_on(address).get()).host, 0U);
}

TEST(HostProof, TheIdsOfThisProcessStayAsTheyAre) {
  EXPECT_EQ(boot_id(), boot_id());
  EXPECT_EQ(namespace_id("net"), namespace_id("net"));
  EXPECT_NE(namespace_id("net"), namespace_id("pid"));
  EXPECT_NE(namespace_id("no_such"), namespace_id("no_such"));
}

TEST(HostProof, KnowsTheAddressesOfThisHost) {
  for (const char* address : {"127.0.0.1:80", "127.3.4.5:80", "[::1]:80", "[::ffff:127.0.0.1]:80"})
    EXPECT_TRUE(is_this_host(number_of(address).ai_addr)) << address;
  for (const char* address : {"192.0.2.1:80", "[2001:db8::1]:80"})
    EXPECT_FALSE(is_this_host(number_of(address).ai_addr)) << address;
  EXPECT_FALSE(is_this_host(nullptr));
}

}  // namespace
}  // namespace cohort::net
