// SPDX-License-Identifier: Apache-2.0
#include "cohort/cluster/address.h"

#include <gmock/gmock.h>

namespace cohort::cluster {
namespace {

using ::testing::ElementsAre;

TEST(Address, NamesOfTheLoopbackAreOne) {
  for (const char* text : {"127.0.0.1:80", "localhost:80", "LocalHost:080", "[::1]:80"})
    EXPECT_EQ(normalized_address(text), "127.0.0.1:80") << text;
}

TEST(Address, OthersStayThemselves) {
  EXPECT_EQ(normalized_address("127.0.0.2:80"), "127.0.0.2:80");
  EXPECT_EQ(normalized_address("Host:2222"), "host:2222");
  EXPECT_EQ(normalized_address("[2001:DB8::1]:1"), "[2001:db8::1]:1");
  for (const char* odd : {"", "host", ":", "a:0"}) EXPECT_EQ(normalized_address(odd), odd);
}

TEST(Address, LocalhostListensOnBothLoopbacks) {
  EXPECT_THAT(listeners_of("localhost:80"), ElementsAre("127.0.0.1:80", "[::1]:80"));
  EXPECT_THAT(listeners_of("127.0.0.1:80"), ElementsAre("127.0.0.1:80"));
  EXPECT_THAT(listeners_of("[::1]:80"), ElementsAre("[::1]:80"));
}

TEST(Address, OnlyTheOwnHostReachesALoopback) {
  for (const char* text : {"localhost:1", "127.0.1.1:1", "[::1]:1"})
    EXPECT_TRUE(is_of_loopback(text));
  for (const char* text : {"host:1", "10.0.0.1:1", "[2001:db8::1]:1"})
    EXPECT_FALSE(is_of_loopback(text));
}

}  // namespace
}  // namespace cohort::cluster
