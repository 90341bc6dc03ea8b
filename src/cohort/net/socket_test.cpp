// SPDX-License-Identifier: Apache-2.0
#include "cohort/net/socket.h"

#include <gtest/gtest.h>

#include <string>

#include "cohort/testing/addresses_of_a_name.h"
#include "cohort/testing/throws_error.h"

namespace cohort::net {
namespace {

using testing::AddressesOfAName;
using testing::throws_error;

// Regression: the first address was free, so a task shared its name and port with another program.
TEST(Socket, APortIsTakenWhereOneAddressOfTheNameIs) {
  std::string taken = "127.0.0.2:0";
  const FileDescriptor other = listen_on(taken);
  const HostPort name{"localhost", parse_address(taken).port};
  const AddressesOfAName both({"127.0.0.1", "127.0.0.2"}, name.port);
  EXPECT_THAT([&] { check_all_free(both.list(), name); },
              throws_error(ErrorCode::resource_exhausted, "got localhost:" + name.port));
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
}  // namespace cohort::net
