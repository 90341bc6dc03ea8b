// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/internal/parameter_links.h"

#include <gtest/gtest.h>

#include "cohort/testing/raw_socket.h"
#include "cohort/testing/throws_error.h"

namespace cohort::server {
namespace {

using testing::RawSocket;
using testing::throws_error;

ParameterLinkOptions options(const std::string& address) {
  return {.addresses = {address},
          .self = rpc::identity_of_process("worker:0", "job", 3),
          .connect_timeout = std::chrono::milliseconds(1),
          .data_timeout = std::chrono::milliseconds(200)};
}

// Regression: if the server paused for a second, its variables counted as lost.
TEST(ParameterLinks, ASilentServerIsWaitedForAsLongAsOneThatWasReached) {
  RawSocket silent;
  ParameterLinks links(options(silent.listen()));
  EXPECT_THAT([&] { links.get(0); },
              throws_error(ErrorCode::deadline_exceeded,
                           "[server.connect] expected an answer from ps:0 within 0.2 s"));
}

TEST(ParameterLinks, NobodyIsNotWaitedFor) {
  ParameterLinkOptions patient = options("127.0.0.1:1");
  patient.data_timeout = std::chrono::hours(1);
  ParameterLinks links(patient);
  EXPECT_THAT([&] { links.get(0); }, throws_error(ErrorCode::unavailable, "127.0.0.1:1"));
}

}  // namespace
}  // namespace cohort::server
