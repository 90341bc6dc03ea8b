// SPDX-License-Identifier: Apache-2.0
// Cases with workers and parameter servers: what goes wrong must fail the case, and the processes
// that one case leaves must serve the next one.
#include "tests/conformance/strategy_cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/conformance/runner.h"

namespace cohort::conformance::strategy {
namespace {

using ::testing::HasSubstr;

class StrategyClusterTest : public ::testing::Test {
 protected:
  ~StrategyClusterTest() override { forget_clusters(); }

  // The verdict of a case whose steps follow the definition of `step`: v += 1, returned.
  Verdict run(const std::string& steps) {
    const std::string first = R"([
      {"do": "var", "name": "v", "init": {"float": 0.0}, "as": "v"},
      {"do": "var", "name": "flag", "init": {"float": 0.0}, "as": "flag"},
      {"do": "coordinator"},
      {"do": "def_fn", "name": "step", "body": [
        {"do": "assign", "var": "v", "method": "assign_add", "value": {"float": 1.0}}],
       "return": {"read": "v"}},
      {"do": "def_fn", "name": "wait", "body": [{"do": "spin_until", "flag": "flag"}],
       "return": null},
      {"do": "def_fn", "name": "bad", "body": [{"do": "raise_op"}], "return": null}])";
    Json content = {{"id", "a"},
                    {"strategy", {{"kind", "parameter_server"}, {"workers", 1}, {"ps", 1}}}};
    content["steps"] =
        Json::array({{{"do", "enter"}, {"what", "scope"}, {"strategy", "S"}, {"as", "scope"}}});
    for (const Json& step : Json::parse(first)) content["steps"].push_back(step);
    for (const Json& step : Json::parse(steps)) content["steps"].push_back(step);
    return run_case({.id = "a", .json = content, .fault = ""}, {.program = COHORT_CONFORMANCE});
  }
};

constexpr const char* kOneStep = R"([
  {"do": "schedule", "fn": "step", "as": "r"},
  {"do": "fetch", "value": {"ref": "r"}, "expect": {"t": "f32", "s": [], "v": [1.0]}},
  {"do": "traces", "fn": "step", "expect": 1}])";

TEST_F(StrategyClusterTest, ProcessesServeTheNextCaseUnlessOneWasKilled) {
  EXPECT_EQ(run(kOneStep).text, "");
  const CaseCluster* const first = cluster_of_size(1, 1, COHORT_CONFORMANCE).get();
  EXPECT_EQ(run(kOneStep).text, "") << "with a variable of the same name";
  EXPECT_EQ(cluster_of_size(1, 1, COHORT_CONFORMANCE).get(), first);
  EXPECT_EQ(run(R"([{"do": "kill", "job": "worker", "task": 0},
                    {"do": "restart", "job": "worker", "task": 0, "after": 0},
                    {"do": "schedule", "fn": "step"}, {"do": "join"}])")
                .text,
            "");
  EXPECT_TRUE(cluster_of_size(1, 1, COHORT_CONFORMANCE)->is_intact());
}

TEST_F(StrategyClusterTest, AnotherResultOrErrorFailsTheCase) {
  EXPECT_THAT(run(R"([{"do": "schedule", "fn": "step", "as": "r"},
                      {"do": "fetch", "value": {"ref": "r"},
                       "expect": {"t": "f32", "s": [], "v": [2.0]}}])")
                  .text,
              HasSubstr("step 8"));
  EXPECT_THAT(run(R"([{"do": "schedule", "fn": "bad"}, {"do": "join"}])").text,
              HasSubstr("expected success"));
  EXPECT_THAT(run(R"([{"do": "schedule", "fn": "step"}, {"do": "join",
                       "error": {"kind": "OpError", "code": "Cancelled"}}])")
                  .text,
              HasSubstr("expected error"));
}

TEST_F(StrategyClusterTest, AStepWaitsForItsFlag) {
  EXPECT_EQ(run(R"([{"do": "schedule", "fn": "wait"}, {"do": "done", "expect": false},
                    {"do": "assign", "var": "flag", "value": {"float": 1.0}}, {"do": "join"},
                    {"do": "done", "expect": true}])")
                .text,
            "");
}

}  // namespace
}  // namespace cohort::conformance::strategy
