// SPDX-License-Identifier: Apache-2.0
// The cases of variable_trace_suite.h. A program can have them only once, so only one test of each
// module includes this header.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>

#include "cohort/testing/slotless_rule.h"
#include "cohort/testing/throws_error.h"
#include "cohort/testing/variable_trace_suite.h"

namespace cohort::testing {

class PlainRule final : public SlotlessRule {
 public:
  std::string_view name() const override { return "plain"; }
  void update(at::Tensor&, const at::Tensor&, std::span<at::Tensor>, const at::Tensor&,
              std::span<const double>) const override {
    ADD_FAILURE() << "a rule ran inside a trace";
  }
};

TEST_P(VariableInATrace, ReadIsTheValueOfTheCall) {
  const auto outputs = trace_and_run([&](const at::Tensor& x) { return variable_.read().add(x); });
  EXPECT_TRUE(at::equal(outputs.at(0), filled(13)));
}

TEST_P(VariableInATrace, GradientsOfWhatWasReadReachTheVariable) {
  const auto outputs = trace_and_run([&](const at::Tensor& x) {
    at::Tensor read = variable_.read();
    const at::Tensor term = read.mul(x);  // x * w
    read = read.mul_(2).square();         // 4 * w * w
    const at::Tensor loss = term.add(read).add(variable_.tensor()).sum();
    return torch::autograd::grad({loss}, {variable_.tensor()})[0];
  });
  EXPECT_TRUE(at::equal(outputs.at(0), filled(3 + 8 * 10 + 1))) << outputs.at(0);
  EXPECT_TRUE(at::equal(variable_.tensor().detach(), filled(1)));
}

TEST_P(VariableInATrace, WhatIsReadWithoutGradientsHasNoGraph) {
  trace_and_run([&](const at::Tensor& x) {
    const c10::NoGradGuard no_grad;
    EXPECT_FALSE(variable_.read().requires_grad());
    return x.clone();
  });
}

// Its graph leads out of the trace.
TEST_P(VariableInATrace, WhatWasReadBeforeTheTraceIsAConstant) {
  const Variable other = local_variable("other", filled(5));
  const at::Tensor before = other.read(), computed = before * 2;
  const auto outputs = trace_and_run([&](const at::Tensor& x) {
    const at::Tensor loss = at::stack({before * before, computed}).sum() * variable_.tensor();
    variable_.tensor().mutable_grad() = at::Tensor();
    loss.sum().backward();
    return variable_.tensor().grad().add(x);
  });
  EXPECT_TRUE(at::equal(outputs.at(0), filled(2 * 25 + 2 * 10 + 3))) << outputs.at(0);
  EXPECT_FALSE(other.tensor().grad().defined());
  EXPECT_TRUE(before.requires_grad());
}

TEST_P(VariableInATrace, AssignmentsAreRecordedWithTheirKinds) {
  trace_and_run([&](const at::Tensor& x) {
    variable_.assign(x);
    variable_.assign_add(x.mul(2));
    variable_.assign_sub(x.mul(3));
    return x.clone();
  });
  ASSERT_EQ(host_.assigns.size(), 3U);
  EXPECT_EQ(host_.assigns[0].kind, internal::Effect::Kind::assign);
  EXPECT_EQ(host_.assigns[1].kind, internal::Effect::Kind::assign_add);
  EXPECT_EQ(host_.assigns[2].kind, internal::Effect::Kind::assign_sub);
  EXPECT_TRUE(at::equal(host_.assigns[2].value, filled(9)));
}

TEST_P(VariableInATrace, AStepIsRecordedAndReadsItsNumbersAtEveryCall) {
  const auto body = [&](const at::Tensor& x) {
    function::Trace::current()->capture_input(rate_);
    apply_updates({PlainRule(), "plain_1"}, std::array{Update{variable_, x.mul(2)}},
                  std::array{rate_});
    return x.clone();
  };
  set_hyperparameter(rate_, 0.25);
  trace_and_run(body);
  ASSERT_EQ(host_.applies.size(), 1U);
  EXPECT_EQ(host_.applies[0].rule, "plain");
  EXPECT_EQ(host_.applies[0].optimizer, "plain_1");
  EXPECT_EQ(host_.applies[0].rate, 0.25);
  EXPECT_TRUE(at::equal(host_.applies[0].gradient, filled(6)));
}

TEST_P(VariableInATrace, ATraceLeavesTheValue) {
  trace_and_run([&](const at::Tensor& x) {
    variable_.assign(x);
    return x.clone();
  });
  EXPECT_TRUE(at::equal(variable_.tensor().detach(), filled(1)));
}

TEST_P(VariableInATrace, WrongSpecsAreRefusedAtTheTrace) {
  EXPECT_THAT(([&] {
                trace_and_run([&](const at::Tensor& x) {
                  variable_.assign(at::zeros({3}));
                  return x;
                });
              }),
              throws_error(ErrorCode::invalid_argument,
                           "expected float32[2], got float32[3] (variable 'w')"));
  EXPECT_THAT(
      ([&] {
        trace_and_run([&](const at::Tensor& x) {
          apply_updates({PlainRule(), "plain_1"}, std::array{Update{variable_, at::zeros({3})}},
                        std::array{rate_});
          return x;
        });
      }),
      throws_error(ErrorCode::invalid_argument, "got float32[3] (variable 'w', rule 'plain')"));
}

}  // namespace cohort::testing
