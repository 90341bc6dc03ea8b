// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/progress_bar.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
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

TEST_F(ProgressBarLine, ShowsMetricsByName) {
  const ProgressBar bar(options(false));
  clock.advance(std::chrono::seconds(2));
  EXPECT_THAT(bar.line(50, {{"val_loss", 0.25}, {"accuracy", 0.875}, {"lr", 1e-5}}),
              HasSubstr("examples/s  accuracy 0.8750  lr 1.000e-05  val_loss 0.2500  2 s left"));
  EXPECT_THAT(bar.line(50, {{"loss", std::nan("")}}), HasSubstr("loss nan"));
}

TEST_F(ProgressBarLine, ShowsNamesInOneLine) {
  const ProgressBar bar(options(false));
  EXPECT_THAT(bar.line(50, {{"a\nb\x1b[K", 1.0}}), HasSubstr("a b [K 1.0000"));
}

// The steps before a resumed run counted as if this run had made them at once.
TEST_F(ProgressBarLine, CountsOnlyStepsOfThisRun) {
  const ProgressBar bar({.steps = 1000, .clock = &clock, .first_step = 500});
  clock.advance(std::chrono::seconds(10));
  EXPECT_THAT(bar.line(600, std::nullopt), HasSubstr("600/1000  10 steps/s  40 s left"));
  EXPECT_THAT(bar.line(500, std::nullopt), Not(HasSubstr("left")));
}

TEST_F(ProgressBarLine, ShowsLongTimesInMinutesAndHours) {
  const ProgressBar bar({.steps = 1000, .clock = &clock});
  clock.advance(std::chrono::seconds(20));
  EXPECT_THAT(bar.line(100, std::nullopt), HasSubstr("5.00 steps/s  3 min 0 s left"));
  EXPECT_THAT(bar.line(1, std::nullopt), HasSubstr("0.05 steps/s  5 h 33 min left"));
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

// A line that was longer than the terminal's stayed on it, and a new one came below.
TEST_F(ProgressBarLine, FitsIntoItsTerminal) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_EQ(::grantpt(terminal), 0);
  ASSERT_EQ(::unlockpt(terminal), 0);
  const winsize size{.ws_row = 25, .ws_col = 40, .ws_xpixel = 0, .ws_ypixel = 0};
  const int side = ::open(::ptsname(terminal), O_RDWR | O_NOCTTY);
  ASSERT_EQ(::ioctl(side, TIOCSWINSZ, &size), 0);
  const int before = ::dup(STDERR_FILENO);
  ::dup2(side, STDERR_FILENO);
  { ProgressBar(options(true)).show(50, {{"loss", 1.0}}); }
  ::dup2(before, STDERR_FILENO);
  char bytes[200];
  const ssize_t count = ::read(terminal, bytes, sizeof bytes);
  for (const int fd : {terminal, side, before}) ::close(fd);
  EXPECT_EQ(std::string(bytes, static_cast<std::size_t>(std::max<ssize_t>(count, 0))),
            "\r\x1b[K[===============               ] 50/100\r\x1b[K");
}

TEST_F(ProgressBarLine, WantsSteps) {
  EXPECT_THROW(ProgressBar({.steps = 0}), Error);
  EXPECT_THROW(ProgressBar({.steps = 1, .first_step = -1}), Error);
}

}  // namespace
}  // namespace cohort
