// SPDX-License-Identifier: Apache-2.0
// Functions registered by real shared libraries that are loaded and unloaded (tests/plugin).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohort/testing/running_program.h"

namespace cohort {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using Plugin = testing::LeavesNoProcess;

// The process crashed at exit (SIGSEGV), since the function's code was already unloaded.
TEST_F(Plugin, ThatIsUnloadedTakesItsFunctionAlong) {
  testing::RunningProgram host({PLUGIN_HOST, OWNING_PLUGIN});
  EXPECT_EQ(host.wait().to_string(), "exit code 0") << host.out() << host.err();
  EXPECT_THAT(host.out(), HasSubstr("loaded: 2 outputs\n"));
  EXPECT_THAT(host.out(), HasSubstr("after dlclose it is unloaded\n"));
  EXPECT_THAT(host.out(), ContainsRegex("kept: not_found.*'plugin.function'"));
  EXPECT_THAT(host.out(), ContainsRegex("by name: not_found.*'plugin.function'"));
}

TEST_F(Plugin, ThatRegistersForTheLifeOfTheProcessStaysLoaded) {
  testing::RunningProgram host({PLUGIN_HOST, PLAIN_PLUGIN});
  EXPECT_EQ(host.wait().to_string(), "exit code 0") << host.out() << host.err();
  EXPECT_THAT(host.out(), HasSubstr("after dlclose it is loaded\n"));
  EXPECT_THAT(host.out(), HasSubstr("kept: 2 outputs\n"));
  EXPECT_THAT(host.out(), HasSubstr("by name: 2 outputs\n"));
}

}  // namespace
}  // namespace cohort
