// SPDX-License-Identifier: Apache-2.0
// A signal ends a server that looks up the address of its own host.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <signal.h>
#include <unistd.h>

#include <string_view>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/server/server.h"
#include "cohort/testing/channel_fixture.h"
#include "cohort/testing/throws_error.h"

namespace {

constexpr std::string_view kSlowName = "slow.test";

// Never destroyed, since the thread of the lookup may outlive the test.
cohort::testing::Promised<bool>& answer() {
  static auto& value = *new cohort::testing::Promised<bool>;
  return value;
}

}  // namespace

// Replaces the C library's function in this program: acts like a name server that does not answer,
// and sends the process a signal.
extern "C" int getaddrinfo(const char* host, const char* port, const addrinfo* hints,
                           addrinfo** found) {
  const bool is_number_only = hints != nullptr && (hints->ai_flags & AI_NUMERICHOST) != 0;
  if (host != nullptr && host == kSlowName && !is_number_only) {
    ::kill(::getpid(), SIGTERM);
    answer().wait();
    return EAI_AGAIN;
  }
  static const auto original =
      reinterpret_cast<decltype(&::getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  return original(host, port, hints, found);
}

namespace cohort {
namespace {

// Regression: the signal had no effect before the name servers answered.
TEST(ServerOwnName, ASignalEndsTheLookup) {
  const ClusterSpec spec({{"worker", {"127.0.0.1:1"}}, {"ps", {std::string(kSlowName) + ":4000"}}});
  EXPECT_THAT(
      [&] {
        Server(SimpleResolver(spec, {.task_type = "ps", .task_id = 0}),
               {.job_id = "own_name_test"});
      },
      testing::throws_error(ErrorCode::cancelled, "the address of host 'slow.test'"));
  answer().set(true);
}

}  // namespace
}  // namespace cohort
