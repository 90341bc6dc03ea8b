// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/run_main.h"

#include <gmock/gmock.h>

#include <stdexcept>

#include "cohort/core/error.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;

int run(const std::function<int(Arguments)>& program) {
  std::string words[] = {"prog", "--steps", "3"};
  char* argv[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  return run_main(3, argv, program);
}

TEST(RunMain, GivesTheArgumentsAndReturnsTheResult) {
  EXPECT_EQ(run([](const Arguments& arguments) {
              EXPECT_EQ(arguments.program, "prog");
              EXPECT_THAT(arguments.values, ElementsAre("--steps", "3"));
              return 7;
            }),
            7);
}

TEST(RunMain, TakesAnEmptyCommandLine) {
  char* argv[] = {nullptr};
  EXPECT_EQ(run_main(0, argv, [](const Arguments& a) { return a.values.empty() ? 0 : 1; }), 0);
}

TEST(RunMain, TurnsAnErrorIntoOneLineAndItsExitCode) {
  ::testing::internal::CaptureStderr();
  const int code = run([](const Arguments&) -> int {
    throw Error(ErrorCode::unavailable, "nobody answers").at("ps:0").during("connect");
  });
  EXPECT_EQ(code, 69);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "error: unavailable from ps:0: nobody answers; while connect\n");
}

TEST(RunMain, TakesForeignExceptionsForInternalErrors) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(run([](const Arguments&) -> int { throw std::runtime_error("boom"); }), 70);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), ::testing::HasSubstr("boom"));
}

}  // namespace
}  // namespace cohort
