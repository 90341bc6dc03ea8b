// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/log.h"

#include <gmock/gmock.h>

#include <set>
#include <thread>
#include <vector>

namespace cohort {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// Collects the lines that a test writes, at level debug.
class Log : public ::testing::Test {
 protected:
  void SetUp() override {
    set_log_level(LogLevel::debug);
    set_log_sink([this](LogLevel level, std::string_view line) {
      levels.push_back(level);
      lines.emplace_back(line);
    });
  }
  void TearDown() override {
    set_log_sink(nullptr);
    set_log_task("");
    set_log_level(LogLevel::warn);
  }

  std::vector<LogLevel> levels;
  std::vector<std::string> lines;
};

TEST_F(Log, WritesTimeLevelAndText) {
  log_warn("lost ", 3, " frames");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_THAT(lines[0], MatchesRegex("[0-9-]+ [0-9:]+\\.[0-9]+ warn.* lost 3 frames"));
}

TEST_F(Log, PutsTheTaskBeforeTheText) {
  set_log_task("worker:1");
  log_info("ready");
  EXPECT_THAT(lines.at(0), EndsWith("info worker:1: ready"));
}

TEST_F(Log, TakesEveryLevelFromItsOwnFunction) {
  log_debug("a");
  log_info("b");
  log_warn("c");
  log_error("d");
  EXPECT_EQ(levels,
            (std::vector{LogLevel::debug, LogLevel::info, LogLevel::warn, LogLevel::error}));
}

TEST_F(Log, WritesWhatTheProgramAskedForAtEveryLevelButOff) {
  set_log_level(LogLevel::error);
  log_output("x = 3");
  EXPECT_THAT(lines.at(0), EndsWith("info x = 3"));
  set_log_level(LogLevel::off);
  log_output("x = 4");
  EXPECT_EQ(lines.size(), 1U);
}

TEST_F(Log, LeavesOutWhatIsBelowTheLevel) {
  for (const LogLevel level : {LogLevel::debug, LogLevel::info, LogLevel::warn, LogLevel::error}) {
    lines.clear();
    set_log_level(level);
    log_debug("a");
    log_info("b");
    log_warn("c");
    log_error("d");
    EXPECT_EQ(lines.size(), 4U - static_cast<std::size_t>(level));
    EXPECT_TRUE(is_logged(level));
  }
}

TEST_F(Log, WritesNothingWhenOff) {
  set_log_level(LogLevel::off);
  log_error("x");
  log_line(LogLevel::off, "y");
  EXPECT_TRUE(lines.empty());
  EXPECT_FALSE(is_logged(LogLevel::error));
}

struct NeverPrinted {
  friend std::ostream& operator<<(std::ostream& stream, const NeverPrinted&) {
    ADD_FAILURE() << "formatted though the level is off";
    return stream;
  }
};

TEST_F(Log, DoesNotFormatWhatIsNotWritten) {
  set_log_level(LogLevel::error);
  log_warn(NeverPrinted{});
}

TEST_F(Log, IsOneLineAnEvent) {
  log_error("unavailable: lost\n  while pull\r\n  while closure 3\n");
  EXPECT_THAT(lines.at(0), EndsWith("error unavailable: lost; while pull; while closure 3"));
}

// Control characters in a peer's job id moved the cursor of the terminal that showed the log.
TEST_F(Log, ShowsControlCharactersAsText) {
  log_warn("job 'x\x1b[31m\x07\x7f\xc2\x9b' of \xc3\xa9t\xc3\xa9\t1");
  EXPECT_THAT(lines.at(0),
              EndsWith("job 'x\\x1b[31m\\x07\\x7f\\xc2\\x9b' of \xc3\xa9t\xc3\xa9\t1"));
}

TEST_F(Log, KeepsTextThatLooksLikeAPattern) {
  log_info("100% {} %v");
  EXPECT_THAT(lines.at(0), HasSubstr("100% {} %v"));
}

TEST_F(Log, KeepsLinesWholeFromManyThreads) {
  constexpr int kThreads = 4;
  constexpr int kLines = 250;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < kLines; ++i) log_info("line=", t, ".", i, ".");
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<std::string> texts;
  for (const std::string& line : lines) texts.insert(line.substr(line.find("line=")));
  EXPECT_EQ(lines.size(), kThreads * kLines);
  EXPECT_EQ(texts.size(), kThreads * kLines);
}

TEST_F(Log, TakesTaskAndSinkChangesFromOtherThreads) {
  std::thread writer([] {
    for (int i = 0; i < 200; ++i) log_info("x");
  });
  for (int i = 0; i < 200; ++i) set_log_task(i % 2 == 0 ? "worker:1" : "");
  writer.join();
  EXPECT_EQ(lines.size(), 200U);
}

TEST_F(Log, GoesToStderrWithoutASink) {
  set_log_sink(nullptr);
  ::testing::internal::CaptureStderr();
  log_info("to the terminal");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), EndsWith("to the terminal\n"));
}

// The level is read once per process, so each value of the variable is tested in a new process.
int exit_after_logging(const char* level) {
  ::setenv("COHORT_LOG_LEVEL", level, 1);
  log_info("an info line");
  return 0;
}

TEST(LogEnvironmentDeathTest, SetsTheLevel) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::exit(exit_after_logging("info")), ::testing::ExitedWithCode(0), "an info line");
}

TEST(LogEnvironmentDeathTest, ComplainsOfALevelThatDoesNotExist) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::exit(exit_after_logging("loud")), ::testing::ExitedWithCode(0),
              "expected COHORT_LOG_LEVEL to be debug, info, warn, error or off, got \"loud\"");
}

}  // namespace
}  // namespace cohort
