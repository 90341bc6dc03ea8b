// SPDX-License-Identifier: Apache-2.0
// Variables inside a trace: every call is recorded and none acts. One suite for all kinds; each is
// a line in a test of its module:
//
//   INSTANTIATE_TEST_SUITE_P(Foo, VariableInATrace, ::testing::Values(&make_foo));
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <tuple>

#include "cohort/function/detail/trace.h"
#include "cohort/testing/slotless_rule.h"
#include "cohort/testing/throws_error.h"
#include "cohort/variable/detail/hyperparameter.h"
#include "cohort/variable/detail/variable_home.h"
#include "cohort/variable/detail/variable_table.h"

namespace cohort::testing {

class PlainRule final : public SlotlessRule {
 public:
  std::string_view name() const override { return "plain"; }
  void update(at::Tensor&, const at::Tensor&, std::span<at::Tensor>, const at::Tensor&,
              std::span<const double>) const override {
    ADD_FAILURE() << "a rule ran inside a trace";
  }
};

// Records the effects of a program.
class RecordingHost final : public internal::EffectHandler {
 public:
  struct Assign {
    internal::AssignKind kind;
    at::Tensor value;
  };
  struct Apply {
    std::string rule;
    std::string optimizer;
    at::Tensor gradient;
    double rate;
  };
  std::vector<Assign> assigns;
  std::vector<Apply> applies;

  std::vector<at::Tensor> iterator_next(std::int64_t) override { return {}; }
  void apply(const internal::SlotOwner& owner, std::int64_t, at::Tensor gradient,
             std::span<const at::Tensor> hyper) override {
    applies.push_back({std::string(owner.rule), std::string(owner.optimizer), std::move(gradient),
                       hyper[0].item<double>()});
  }
  void assign(internal::AssignKind kind, std::int64_t, at::Tensor value) override {
    assigns.push_back({kind, std::move(value)});
  }
  at::Tensor gather(std::int64_t, const at::Tensor&) override { return {}; }
  void scatter_add(std::int64_t, const at::Tensor&, const at::Tensor&) override {}
};

inline at::Tensor filled(double value, std::vector<std::int64_t> sizes = {2}) {
  return at::full(sizes, value, at::TensorOptions(at::kFloat));
}

// The parameter makes a trainable variable "w", float32[2], whose tensor is 1.
class VariableInATrace : public ::testing::TestWithParam<Variable (*)()> {
 protected:
  VariableInATrace() { table_.add(variable_); }

  // Traces body(x) for a float32[2], then runs the program with this x and a variable of 10.
  std::vector<at::Tensor> trace_and_run(const std::function<at::Tensor(const at::Tensor&)>& body,
                                        double x = 3) {
    const auto wrapped = [&](const std::vector<at::Tensor>& inputs) {
      return std::vector{body(inputs[0])};
    };
    function::TraceOptions options;
    options.variable_of = table_.lookup();
    const auto traced = function::trace({filled(1)}, {filled(2)}, wrapped, options);
    std::vector<at::Tensor> inputs{filled(x)};
    for (const at::Tensor& captured : traced.captured_inputs)
      inputs.push_back(hyperparameter_snapshot(captured));
    const std::vector<at::Tensor> values(traced.info.variables.size(), filled(10));
    return function::PreparedProgram::decode(traced.bytes)->run(inputs, values, host_, 0);
  }

  Variable variable_ = GetParam()();
  VariableTable table_;
  RecordingHost host_;
  at::Tensor rate_ = make_hyperparameter(0.5);
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
  EXPECT_EQ(host_.assigns[0].kind, internal::AssignKind::assign);
  EXPECT_EQ(host_.assigns[1].kind, internal::AssignKind::add);
  EXPECT_EQ(host_.assigns[2].kind, internal::AssignKind::sub);
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
