// SPDX-License-Identifier: Apache-2.0
// Variables inside a trace: every call is recorded and none acts. One suite for all kinds; the test
// of a kind has the line
//
//   INSTANTIATE_TEST_SUITE_P(Foo, VariableInATrace, ::testing::Values(&make_foo));
//
// The cases are in variable_trace_cases.h, which one test of each module includes.
#pragma once

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "cohort/function/trace.h"
#include "cohort/variable/hyperparameter.h"
#include "cohort/variable/variable_home.h"
#include "cohort/variable/variable_table.h"

namespace cohort::testing {

// Records the effects of a program.
class RecordingHost final : public internal::EffectHandler {
 public:
  struct Assign {
    internal::Effect::Kind kind;
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
  void update(internal::Effect effect) override {
    if (effect.kind == internal::Effect::Kind::apply)
      applies.push_back({effect.rule, effect.optimizer, effect.tensors[0], effect.hyper[0]});
    else
      assigns.push_back({effect.kind, effect.tensors[0]});
  }
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

}  // namespace cohort::testing
