// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/links/parameter_links.h"

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

// Regression: the next closure waited as long again, so the error came after twice the time.
TEST(ParameterLinks, AServerThatHasBeenSilentIsWaitedForAShortTime) {
  RawSocket silent;
  ParameterLinkOptions again = options(silent.listen());
  again.connect_timeout = std::chrono::milliseconds(100);
  ParameterLinks links(again);
  EXPECT_THAT([&] { links.get(0); }, throws_error(ErrorCode::deadline_exceeded, "within 0.2 s"));
  EXPECT_THAT([&] { links.get(0); }, throws_error(ErrorCode::deadline_exceeded, "within 0.3 s"));
}

TEST(ParameterLinks, AServerThatDidNotAnswerARequestIsWaitedForAShortTime) {
  RawSocket silent;
  ParameterLinkOptions again = options(silent.listen());
  again.connect_timeout = std::chrono::milliseconds(100);
  again.data_timeout = std::chrono::hours(1);
  ParameterLinks links(again);
  links.note_silence(0);
  EXPECT_THAT([&] { links.get(0); }, throws_error(ErrorCode::deadline_exceeded, "within 3600.1 s"));
}

TEST(ParameterLinks, NobodyIsNotWaitedFor) {
  ParameterLinkOptions patient = options("127.0.0.1:1");
  patient.data_timeout = std::chrono::hours(1);
  ParameterLinks links(patient);
  EXPECT_THAT([&] { links.get(0); }, throws_error(ErrorCode::unavailable, "127.0.0.1:1"));
}

}  // namespace
}  // namespace cohort::server
