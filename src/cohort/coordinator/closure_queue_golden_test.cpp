// SPDX-License-Identifier: Apache-2.0
// The recorded cases of the closure queue, and those of the classification of failures.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cohort/coordinator/internal/queue_replay.h"

namespace cohort::coordinator::internal {
namespace {

using nlohmann::json;

json cases_of(const std::string& file) {
  std::ifstream stream(COHORT_SOURCE_DIR "/tests/conformance/strategy/" + file);
  return stream ? json::parse(stream) : json::array();
}

struct GoldenCase {
  json content;
  friend void PrintTo(const GoldenCase& c, std::ostream* out) { *out << c.content["id"]; }
};

std::vector<GoldenCase> queue_cases() {
  std::vector<GoldenCase> cases;
  for (const json& c : cases_of("closure_queue.json")) cases.push_back({c});
  return cases;
}

std::vector<GoldenCase> failure_cases() {
  std::vector<GoldenCase> cases;
  for (const char* file : {"coordinator.json", "faults.json"}) {
    for (const json& c : cases_of(file)) {
      if (is_about_failures(c["steps"].dump())) cases.push_back({c});
    }
  }
  return cases;
}

std::string name_of_case(const ::testing::TestParamInfo<GoldenCase>& info) {
  std::string name = info.param.content["id"];
  std::erase(name, '-');
  return name;
}

class ClosureQueueGolden : public ::testing::TestWithParam<GoldenCase> {};

TEST_P(ClosureQueueGolden, DoesWhatWasRecorded) {
  EXPECT_EQ(replay_queue(GetParam().content["steps"].dump()), "");
}

INSTANTIATE_TEST_SUITE_P(Cases, ClosureQueueGolden, ::testing::ValuesIn(queue_cases()),
                         name_of_case);

TEST(ClosureQueueGoldenFile, HasCases) { EXPECT_GE(queue_cases().size(), 11); }
// Regression: a missing file had no cases, and no test failed.
TEST(FailureGoldenFiles, HaveCases) {
  for (const char* file : {"coordinator.json", "faults.json"})
    EXPECT_FALSE(cases_of(file).empty()) << file;
  EXPECT_GE(failure_cases().size(), 1);
}

class FailureGolden : public ::testing::TestWithParam<GoldenCase> {};

TEST_P(FailureGolden, IsClassifiedAsRecorded) {
  const json strategy = GetParam().content.value("strategy", json::object());
  EXPECT_EQ(replay_failures(GetParam().content["steps"].dump(), strategy.value("workers", 1)), "");
}

INSTANTIATE_TEST_SUITE_P(Cases, FailureGolden, ::testing::ValuesIn(failure_cases()), name_of_case);

}  // namespace
}  // namespace cohort::coordinator::internal
