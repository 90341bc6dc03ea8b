// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/reserved_port.h"
#include "cohort/net/socket.h"
#include "cohort/rpc/sockets/connect.h"

#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <vector>

namespace cohort::rpc {
namespace {

std::string address_of(const ReservedPort& port) {
  return "127.0.0.1:" + std::to_string(port.number());
}

// Regression: two clusters that started at the same time could choose the same port, since it was
// free again until its server had started.
TEST(ReservedPort, IsGivenToNobodyElse) {
  const ReservedPort port;
  std::vector<ReservedPort> others;
  std::set<int> numbers;
  for (int i = 0; i < 500; ++i) numbers.insert(others.emplace_back().number());
  EXPECT_EQ(numbers.size(), 500U);
  EXPECT_FALSE(numbers.contains(port.number()));
}

TEST(ReservedPort, ItsServerListensThereAndAgainAfterItsEnd) {
  const ReservedPort port;
  for (int round = 0; round < 2; ++round) {
    EXPECT_FALSE(port.has_listener());
    std::string address = address_of(port);
    const FileDescriptor server = net::listen_on(address);
    EXPECT_TRUE(port.has_listener());
    internal::connect_to({"", address, ""}, Deadline::after(std::chrono::seconds(60)));
  }
}

TEST(ReservedPort, CanBeMoved) {
  ReservedPort first;
  const int number = first.number();
  std::optional<ReservedPort> second(std::move(first));
  EXPECT_EQ(second->number(), number);
  second.reset();
  std::string address = "127.0.0.1:" + std::to_string(number);
  EXPECT_TRUE(net::listen_on(address).is_open()) << "it was let go of";
}

}  // namespace
}  // namespace cohort::rpc
