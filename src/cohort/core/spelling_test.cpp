// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/spelling.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "cohort/core/log.h"
#include "cohort/core/run_main.h"

namespace cohort {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(DidYouMean, CountsTheChangesOfOneCharacter) {
  EXPECT_EQ(spelling_distance("momentum", "momentum"), 0U);
  EXPECT_EQ(spelling_distance("", "abc"), 3U);
  EXPECT_EQ(spelling_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(spelling_distance("statsu", "status"), 1U) << "neighbours that are exchanged";
  EXPECT_EQ(spelling_distance("COHORT_data", "cohort_DATA"), 0U);
}

TEST(DidYouMean, NamesTheNearest) {
  EXPECT_EQ(did_you_mean("lunch", {"server", "launch"}), "; did you mean 'launch'?");
  EXPECT_EQ(did_you_mean("--worker", {"--ps", "--workers"}), "; did you mean '--workers'?");
  EXPECT_EQ(did_you_mean("beta1", {"learning_rate", "beta_1", "beta_2"}),
            "; did you mean 'beta_1'?");
}

TEST(DidYouMean, NamesTheOneThatBeginsLikeIt) {
  EXPECT_EQ(did_you_mean("--data-dirs", {"--grace", "--data"}), "; did you mean '--data'?");
  EXPECT_EQ(did_you_mean("--restart-del", {"--restart", "--restart-delay"}),
            "; did you mean '--restart-delay'?");
}

TEST(DidYouMean, NamesNothingThatIsNotSimilar) {
  EXPECT_EQ(did_you_mean("lr", {"learning_rate", "rho"}), "");
  EXPECT_EQ(did_you_mean("train", {"launch", "server", "status"}), "");
  EXPECT_EQ(did_you_mean("", {"launch"}), "");
  EXPECT_EQ(did_you_mean(std::string(1000, 'a'), {std::string(999, 'a')}), "");
  EXPECT_EQ(did_you_mean("launch", {}), "");
  EXPECT_EQ(did_you_mean("launch", {"lunch", "launch"}), "") << "is no misspelled name";
}

// A variable that is set for a scope, and the lines that are logged meanwhile.
class Set {
 public:
  Set(std::string name, const char* value) : name_(std::move(name)) {
    ::setenv(name_.c_str(), value, 1);
    set_log_sink([this](LogLevel, std::string_view line) { lines.emplace_back(line); });
  }
  ~Set() {
    set_log_sink(nullptr);
    ::unsetenv(name_.c_str());
  }
  Set(const Set&) = delete;
  Set& operator=(const Set&) = delete;

  std::vector<std::string> lines;

 private:
  const std::string name_;
};

// The parts are joined here, as tools/environment_test.py takes a whole name for one that is read.
const std::string kPrefix = "COHORT_";

// A misspelled variable was ignored without a word.
TEST(Environment, AMisspelledVariableIsAWarningOfAProgram) {
  const Set set(kPrefix + "DATA_DIR", "/data");
  EXPECT_EQ(run_main(0, nullptr, [](const Arguments&) { return 0; }), 0);
  EXPECT_THAT(set.lines, ElementsAre(AllOf(HasSubstr("warn"), HasSubstr("COHORT_DATA_DIR, "),
                                           HasSubstr("did you mean COHORT_DATA_DIRS?"))));
}

TEST(Environment, OtherVariablesAreTheUsers) {
  for (const char* name : {"DATA_DIRS", "HOME", "DATA_DIRECTORY", "SEED", ""}) {
    const Set set(kPrefix + name, "1");
    warn_of_misspelled_variables();
    EXPECT_THAT(set.lines, IsEmpty()) << name;
  }
}

}  // namespace
}  // namespace cohort
