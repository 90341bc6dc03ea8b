// SPDX-License-Identifier: Apache-2.0
#include "cohort/cli/commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

namespace cohort::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Outcome {
  int exit_code;
  std::string out;
  std::string err;
};

Outcome cohort(std::vector<const char*> words) {
  words.insert(words.begin(), "cohort");
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const int exit_code = run(static_cast<int>(words.size()), words.data());
  std::string out = ::testing::internal::GetCapturedStdout();
  return {exit_code, std::move(out), ::testing::internal::GetCapturedStderr()};
}

TEST(Commands, HelpListsTheSubCommands) {
  const Outcome outcome = cohort({"--help"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("launch"), HasSubstr("server"), HasSubstr("status")));
}

TEST(Commands, EachSubCommandHasHelp) {
  EXPECT_THAT(cohort({"launch", "--help"}).out,
              AllOf(HasSubstr("--workers"), HasSubstr("--json"), HasSubstr("Exit code")));
  EXPECT_THAT(cohort({"server", "--help"}).out,
              AllOf(HasSubstr("--data"), HasSubstr("--backend"), HasSubstr("TF_CONFIG")));
  EXPECT_THAT(cohort({"status", "--help"}).out,
              AllOf(HasSubstr("--cluster"), HasSubstr("--timeout"), HasSubstr("Exit code")));
}

// The help showed the values of an enum as unprintable bytes.
TEST(Commands, HelpIsText) {
  for (const char* command : {"launch", "server", "status"}) {
    for (const char each : cohort({command, "--help"}).out)
      EXPECT_TRUE(each == '\n' || static_cast<unsigned char>(each) >= ' ') << command;
  }
  EXPECT_THAT(cohort({"server", "--help"}).out, HasSubstr("{always,between-hosts,never}"));
}

TEST(Commands, VersionIsOneLine) {
  EXPECT_EQ(cohort({"--version"}).out, std::string(COHORT_VERSION) + "\n");
}

struct BadUsage {
  std::vector<const char*> words;
  const char* problem;
  const char* remedy;
};

TEST(Commands, BadUsageIs64AndSaysWhatIsExpected) {
  const BadUsage usages[] = {
      {{}, "subcommand is required", "`cohort --help`"},
      {{"launch", "--workers", "many", "--", "true"},
       "--workers: expected a whole number of 1 to 1000, got 'many'",
       "`cohort launch --help`"},
      {{"launch", "--ps", "0", "--workers", "0", "--", "true"},
       "--workers: expected a whole number of 1 to 1000, got '0'",
       "`cohort launch --help`"},
      {{"launch", "--ps", "1.5", "--", "true"},
       "--ps: expected a whole number of 0 to 1000, got '1.5'",
       "`cohort launch --help`"},
      {{"launch", "--grace", "nan", "--", "true"},
       "--grace: expected seconds of 0 to 1000000000, got 'nan'",
       "`cohort launch --help`"},
      {{"launch", "--restart", "1.5", "--", "true"},
       "--restart: expected a whole number of 0 to 1000000, got '1.5'",
       "`cohort launch --help`"},
      {{"launch", "--speed", "2", "--", "true"}, "got '--speed'", "`cohort launch --help`"},
      {{"launch", "--workers", "2", "true"}, "got 'true'", "the program goes after --"},
      {{"server", "true"}, "got 'true'; correct it", "`cohort server --help`"},
      // Misspelled words were refused without the right ones.
      {{"lanuch", "--", "true"}, "no command 'lanuch'", "; did you mean 'launch'?"},
      {{"launch", "--worker", "2", "--", "true"}, "got '--worker'", "; did you mean '--workers'?"},
      {{"server", "--data-dir=/data"}, "got '--data-dir=/data'", "; did you mean '--data"},
      {{"status", "--timeuot", "2"}, "got '--timeuot'", "; did you mean '--timeout'?"},
      // It read that a subcommand is required.
      {{"--vresion"}, "got '--vresion'; correct it", "; did you mean '--version'?"},
      {{"--hlep"}, "got '--hlep'", "; did you mean '--help'?"},
      {{"--frobnicate"}, "got '--frobnicate'", "`cohort --help`"},
  };
  for (const BadUsage& usage : usages) {
    const Outcome outcome = cohort(usage.words);
    EXPECT_EQ(outcome.exit_code, 64);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("[cli.usage] "), HasSubstr(usage.problem),
                                   HasSubstr(usage.remedy)));
  }
}

TEST(Commands, BadUsageAsJsonIsOneLineOnStdout) {
  for (const auto& words : {std::vector<const char*>{"launch", "--json", "--workers", "x"},
                            {"launch", "--json", "true"},
                            {"dance", "--json"}}) {
    const Outcome outcome = cohort(words);
    EXPECT_EQ(outcome.err, "");
    EXPECT_EQ(nlohmann::json::parse(outcome.out).at("exit_code"), 64);
  }
}

TEST(Commands, AnUnknownOneIsNamed) {
  EXPECT_THAT(cohort({"dance", "--help"}).err,
              AllOf(HasSubstr("no command 'dance'"), HasSubstr("launch server")));
}

TEST(Commands, LaunchPassesTheProgramsOwnOptionsOn) {
  EXPECT_EQ(cohort({"launch", "--workers", "1", "--", "sh", "-c", "exit 9", "--help"}).exit_code,
            9);
}

TEST(Commands, LaunchWithoutAProgramSaysWhereToWriteIt) {
  const Outcome outcome = cohort({"launch", "--workers", "1"});
  EXPECT_EQ(outcome.exit_code, 64);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("write it after --"), HasSubstr("--help")));
}

TEST(Commands, ErrorsAsJsonAreOneLineOnStdout) {
  const Outcome outcome = cohort({"launch", "--json", "--kill", "worker:1", "--", "true"});
  const auto line = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(line.at("exit_code"), 64);
  EXPECT_EQ(line.at("code"), "invalid_argument");
  EXPECT_THAT(line.at("error").get<std::string>(), HasSubstr("TASK@SECONDS"));
}

TEST(Commands, LaunchReportsTheTasksAsJson) {
  const Outcome outcome =
      cohort({"launch", "--json", "--workers", "1", "--ps", "1", "--", "sh", "-c", "exit 0"});
  const auto line = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(line.at("exit_code"), 0);
  EXPECT_EQ(line.at("tasks").size(), 3u);
  EXPECT_EQ(line.at("tasks").back().at("task"), "chief:0");
}

TEST(Commands, KillTakesATaskAndSeconds) {
  for (const char* text : {"worker:0", "worker:0@", "worker:0@soon", "worker:0@-1", "worker:0@1x",
                           "worker:0@101%", "worker:0@%", "@1", "worker@1"}) {
    EXPECT_EQ(cohort({"launch", "--kill", text, "--", "true"}).exit_code, 64) << text;
  }
}

TEST(Commands, KillNamesTheJobThatMayBeMeant) {
  EXPECT_THAT(cohort({"launch", "--kill", "wroker:0@1", "--", "true"}).err,
              HasSubstr("got 'wroker:0' (--kill); did you mean 'worker'?"));
}

TEST(Commands, AMisspelledVariableOfTheEnvironmentIsAWarning) {
  const std::string name = std::string("COHORT_") + "DATADIRS";
  ::setenv(name.c_str(), "/data", 1);
  EXPECT_THAT(cohort({"launch", "--dry-run", "--", "true"}).err,
              HasSubstr("did you mean COHORT_DATA_DIRS?"));
  ::unsetenv(name.c_str());
}

TEST(Commands, DryRunPrintsALineATask) {
  const Outcome outcome =
      cohort({"launch", "--workers", "1", "--ps", "1", "--dry-run", "--", "true"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 3);
  EXPECT_THAT(outcome.out, HasSubstr("TF_CONFIG='{\"cluster\":"));
  EXPECT_THAT(outcome.out, ::testing::Not(HasSubstr("COHORT_METRICS")));
}

TEST(Commands, EveryTaskOfALaunchServesMetricsIfThatIsWanted) {
  const Outcome outcome =
      cohort({"launch", "--workers", "1", "--ps", "1", "--metrics", "--dry-run", "--", "true"});
  EXPECT_EQ(outcome.exit_code, 0);
  std::size_t tasks = 0;
  for (std::size_t at = 0; (at = outcome.out.find("COHORT_METRICS=1 ", at)) != std::string::npos;
       ++at)
    ++tasks;
  EXPECT_EQ(tasks, 3U) << outcome.out;
  EXPECT_EQ(outcome.err.find("did you mean"), std::string::npos) << outcome.err;
}

TEST(Commands, ServerWithoutATaskSaysWhatIsMissing) {
  ::unsetenv("TF_CONFIG");
  const Outcome outcome = cohort({"server"});
  EXPECT_EQ(outcome.exit_code, 64);
  EXPECT_THAT(outcome.err, HasSubstr("TF_CONFIG, which is unset"));
}

}  // namespace
}  // namespace cohort::cli
