// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/refusal_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cohort/core/log.h"
#include "cohort/testing/fake_clock.h"

namespace cohort::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RefusalLogTest : public ::testing::Test {
 protected:
  RefusalLogTest() {
    set_log_sink([this](LogLevel, std::string_view line) { lines.emplace_back(line); });
  }
  ~RefusalLogTest() override { set_log_sink(nullptr); }

  // From as many hosts.
  void refuse(int count) {
    for (int i = 0; i < count; ++i) log.note("10.0.0." + std::to_string(i) + ":1", "no handshake");
  }

  std::vector<std::string> lines;
  testing::FakeClock clock;
  RefusalLog log{clock};
};

TEST_F(RefusalLogTest, TheFirstHaveALineEachWithAddressAndReason) {
  refuse(2);
  EXPECT_THAT(lines, ElementsAre(HasSubstr("refused 10.0.0.0:1: no handshake"),
                                 HasSubstr("refused 10.0.0.1:1: no handshake")));
}

// Regression: a server that was restarted had five lines about the same refused workers.
TEST_F(RefusalLogTest, AHostAndAReasonHaveOneLine) {
  for (int port = 1; port <= 9; ++port) {
    log.note("10.0.0.1:" + std::to_string(port), "no handshake");
    log.note("[fd00::1]:" + std::to_string(port), "no handshake");
    const std::string who = "10.0.0.1:" + std::to_string(port);
    log.note(who, "broken frames of " + who);
  }
  EXPECT_THAT(lines, ElementsAre(HasSubstr("refused 10.0.0.1:1: no handshake"),
                                 HasSubstr("refused [fd00::1]:1: no handshake"),
                                 HasSubstr("refused 10.0.0.1:1: broken frames of 10.0.0.1:1")));
  log.finish();
  EXPECT_THAT(lines.back(), HasSubstr("refused 24 more"));
}

TEST_F(RefusalLogTest, ACallerMayHaveNoPort) {
  for (int i = 0; i < 2; ++i) {
    log.note("inprocess", "frames of inprocess");
    log.note("", "no address");
  }
  EXPECT_THAT(lines, ElementsAre(HasSubstr("refused inprocess: frames of inprocess"),
                                 HasSubstr("refused : no address")));
}

TEST_F(RefusalLogTest, TheOthersAreCountedOnceTheirMinuteIsOver) {
  refuse(1000);
  EXPECT_EQ(lines.size(), RefusalLog::kLinesMax);
  lines.clear();
  log.settle();
  EXPECT_THAT(lines, IsEmpty());
  clock.advance(std::chrono::minutes(1));
  log.settle();
  log.settle();
  EXPECT_THAT(lines, ElementsAre(HasSubstr("refused 995 more within a minute")));
}

// Regression: the refusals of a server's last minute were never logged.
TEST_F(RefusalLogTest, TheEndDoesNotWaitForTheMinute) {
  refuse(7);
  lines.clear();
  log.finish();
  log.finish();
  EXPECT_THAT(lines, ElementsAre(HasSubstr("refused 2 more within a minute")));
}

TEST_F(RefusalLogTest, TheNextMinuteHasItsOwnLines) {
  refuse(7);
  clock.advance(std::chrono::minutes(2));
  lines.clear();
  refuse(1);
  EXPECT_THAT(lines, ElementsAre(HasSubstr("refused 2 more"), HasSubstr("refused 10.0.0.0:1")));
}

}  // namespace
}  // namespace cohort::rpc
