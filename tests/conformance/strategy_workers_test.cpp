// SPDX-License-Identifier: Apache-2.0
// Tests of cases with several workers: each way of running them must fail for what one worker does
// wrong, and name it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "tests/conformance/runner.h"

namespace cohort::conformance::strategy {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Verdict run(const char* steps, const WorkerOptions& options = {.program = COHORT_CONFORMANCE}) {
  Json content = {{"id", "a"}, {"strategy", {{"kind", "multi_worker_mirrored"}, {"workers", 2}}}};
  content["steps"] = Json::parse(steps);
  return run_case({"a", content, ""}, options);
}

class WorkersOfACase : public ::testing::TestWithParam<WorkerOptions> {};

TEST_P(WorkersOfACase, MeetEachOther) {
  const Verdict verdict =
      run(R"([{"do": "prop", "name": "id_in_cluster", "by_worker": [{"expect": 0}, {"expect": 1}]},
      {"do": "run", "body": [{"do": "all_reduce", "op": "SUM", "value": {"int": 3}, "as": "s"}],
       "return": {"ref": "s"}, "expect": {"t": "i32", "s": [], "v": [6]}}])",
          GetParam());
  EXPECT_EQ(verdict.status, Status::passed) << verdict.text;
}

TEST_P(WorkersOfACase, AreNamedWithTheStepThatDiffers) {
  const Verdict verdict =
      run(R"([{"do": "probe"}, {"do": "eval", "value": {"pick_worker": [{"int": 1}, {"int": 2}]},
                                "expect": {"int": 1}}])",
          GetParam());
  EXPECT_EQ(verdict.status, Status::failed);
  EXPECT_THAT(verdict.text, AllOf(HasSubstr("worker 1, step 1"), Not(HasSubstr("worker 0"))));
}

INSTANTIATE_TEST_SUITE_P(
    All, WorkersOfACase,
    ::testing::Values(WorkerOptions{.program = COHORT_CONFORMANCE,
                                    .backend = GroupBackend::shared_memory},
                      WorkerOptions{.program = COHORT_CONFORMANCE, .backend = GroupBackend::tcp},
                      WorkerOptions{.are_threads = true, .backend = GroupBackend::shared_memory},
                      WorkerOptions{.are_threads = true, .backend = GroupBackend::tcp}));

// The others notice the end at once, and do not wait for their timeout.
TEST(WorkerProcesses, MayDieWhereTheCaseSaysSo) {
  const Verdict verdict = run(R"([{"do": "only_worker", "ids": [1], "body": [{"do": "die"}]},
      {"do": "run", "return": null, "body": [{"do": "all_reduce", "op": "SUM", "value": {"int": 3}}],
       "error": {"kind": "OpError", "code": "Unavailable", "words": ["worker:1"]}}])");
  EXPECT_EQ(verdict.status, Status::passed) << verdict.text;
}

TEST(WorkerProcesses, ThatEndUnexpectedlyAreNamed) {
  const Verdict verdict = run("[]", {.program = "/bin/false"});
  EXPECT_EQ(verdict.status, Status::failed);
  EXPECT_THAT(verdict.text,
              HasSubstr("worker 1, before its steps: the process ended with exit code 1"));
}

TEST(WorkerProcesses, ThatDoNotEndAreNamedWithTheStepAndKilled) {
  // A busy machine may need longer to start them.
  Verdict verdict;
  for (const int seconds : {5, 60}) {
    verdict = run(R"([{"do": "only_worker", "ids": [1],
                       "body": [{"do": "while", "times": 2000000000, "body": []}]}])",
                  {.program = COHORT_CONFORMANCE, .deadline = std::chrono::seconds(seconds)});
    if (verdict.text.find("before its steps") == std::string::npos) break;
  }
  EXPECT_EQ(verdict.status, Status::failed);
  EXPECT_THAT(verdict.text,
              AllOf(HasSubstr("worker 1, at step 0: no end within"), Not(HasSubstr("at step 1"))));
}

TEST(WorkerThreads, CannotDie) {
  EXPECT_EQ(
      run(R"([{"do": "only_worker", "ids": [1], "body": [{"do": "die"}]}])", {.are_threads = true})
          .status,
      Status::skipped);
}

}  // namespace
}  // namespace cohort::conformance::strategy
