// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/progress_bar.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "cohort/core/error.h"
#include "cohort/testing/fake_clock.h"

namespace cohort {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ProgressBarLine : public ::testing::Test {
 protected:
  ProgressBarOptions options(bool is_visible) {
    return {.steps = 100, .examples_per_step = 640, .is_visible = is_visible, .clock = &clock};
  }

  testing::FakeClock clock;
};

TEST_F(ProgressBarLine, ShowsStepsRateLossAndTimeLeft) {
  const ProgressBar bar(options(false));
  clock.advance(std::chrono::seconds(2));
  EXPECT_EQ(bar.line(50, 0.3125),
            "[===============               ] 50/100  16,000 examples/s  loss 0.3125  2 s left");
}

TEST_F(ProgressBarLine, GuessesNoTimeBeforeTheFirstStep) {
  const ProgressBar bar(options(false));
  EXPECT_THAT(bar.line(0, std::nullopt), AllOf(HasSubstr("0/100"), Not(HasSubstr("left"))));
}

TEST_F(ProgressBarLine, StaysWithinItsSteps) {
  const ProgressBar bar(options(false));
  EXPECT_THAT(bar.line(500, std::nullopt), HasSubstr("100/100"));
  EXPECT_THAT(bar.line(-1, std::nullopt), HasSubstr("0/100"));
}

TEST_F(ProgressBarLine, WritesNothingWhenInvisible) {
  ::testing::internal::CaptureStderr();
  { ProgressBar(options(false)).show(50); }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST_F(ProgressBarLine, ReplacesItselfAndClearsItsLine) {
  ::testing::internal::CaptureStderr();
  { ProgressBar(options(true)).show(50); }
  const std::string written = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(written, AllOf(HasSubstr("50/100"), ::testing::EndsWith("\r\x1b[K")));
  EXPECT_THAT(written, Not(HasSubstr("\n")));
}

// An empty variable was descriptor 0, often a terminal.
TEST(ProgressBarLauncher, IsADescriptorOrNobody) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const int input = ::dup(STDIN_FILENO);
  ::dup2(ends[1], STDIN_FILENO);
  for (const char* text : {"", "x", "0x", "-1"}) {
    setenv("COHORT_PROGRESS_FD", text, 1);
    ProgressBar({.steps = 1, .is_visible = false}).show(1);
  }
  setenv("COHORT_PROGRESS_FD", std::to_string(ends[1]).c_str(), 1);
  ProgressBar({.steps = 2, .is_visible = false}).show(1);
  unsetenv("COHORT_PROGRESS_FD");
  ::dup2(input, STDIN_FILENO);
  for (const int fd : {input, ends[1]}) ::close(fd);
  char bytes[8];
  EXPECT_EQ(::read(ends[0], bytes, sizeof bytes), 1) << "what other text than a number has written";
  EXPECT_EQ(bytes[0], 50);
  ::close(ends[0]);
}

TEST_F(ProgressBarLine, WantsSteps) { EXPECT_THROW(ProgressBar({.steps = 0}), Error); }

}  // namespace
}  // namespace cohort
