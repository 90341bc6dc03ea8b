// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/effects.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cohort::rpc {
namespace {

using cohort::internal::AssignKind;

TEST(Effects, EachKindOfAssignComesBack) {
  for (const AssignKind kind : {AssignKind::assign, AssignKind::add, AssignKind::sub}) {
    const Effect effect = assign_effect(kind, at::full({}, 2.0));
    EXPECT_EQ(assign_kind(effect.kind), kind);
    ASSERT_EQ(effect.tensors.size(), 1U);
    EXPECT_EQ(effect.tensors[0].item<double>(), 2.0);
  }
}

TEST(Effects, AStepOfARuleNamesItsSlots) {
  const Effect effect = apply_effect({"adam", "adam_1"}, {0.1, 0.9}, at::full({}, 3.0));
  EXPECT_EQ(effect.kind, Effect::Kind::apply);
  EXPECT_EQ(effect.rule, "adam");
  EXPECT_EQ(effect.optimizer, "adam_1");
  EXPECT_THAT(effect.hyper, ::testing::ElementsAre(0.1, 0.9));
  EXPECT_EQ(effect.tensors.at(0).item<double>(), 3.0);
}

}  // namespace
}  // namespace cohort::rpc
