// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "cohort/optimizer/optimizer.h"
#include "cohort/testing/throws_error.h"

namespace cohort::optimizer {
namespace {

TEST(UpdateRules, AreFoundByTheirOwnName) {
  ASSERT_FALSE(update_rule_names().empty());
  for (const std::string_view name : update_rule_names())
    EXPECT_EQ(update_rule_of(name).name(), name);
}

TEST(UpdateRules, HaveDifferentNames) {
  const auto names = update_rule_names();
  EXPECT_EQ(std::set<std::string_view>(names.begin(), names.end()).size(), names.size());
}

TEST(UpdateRules, AnUnknownNameIsNotFoundAndListsTheKnownOnes) {
  std::string known;
  for (const std::string_view name : update_rule_names())
    known += (known.empty() ? "'" : ", '") + std::string(name) + "'";
  EXPECT_THAT(
      [] { update_rule_of("ftrl"); },
      testing::throws_error(ErrorCode::not_found, "expected one of " + known + ", got 'ftrl'"));
}

TEST(UpdateRules, AMisspelledNameIsAnsweredWithTheNearestOne) {
  EXPECT_THAT([] { update_rule_of("adamm#2"); },
              testing::throws_error(ErrorCode::not_found, "got 'adamm#2'; did you mean 'adam'?"));
}

TEST(UpdateRules, CallTheirFirstHyperparameterLearningRate) {
  ASSERT_FALSE(update_rule_names().empty());
  for (const std::string_view name : update_rule_names()) {
    EXPECT_EQ(update_rule_of(name).hyperparameter_names().front(), "learning_rate") << name;
  }
}

}  // namespace
}  // namespace cohort::optimizer
