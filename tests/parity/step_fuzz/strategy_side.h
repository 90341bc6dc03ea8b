// SPDX-License-Identifier: Apache-2.0
// Random steps in the replicas of a strategy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "tests/parity/step_fuzz/comparison.h"
#include "tests/parity/step_fuzz/program.h"
#include "tests/parity/step_fuzz/step.h"

namespace cohort::parity {

// A program with its own variables, in the replicas of a strategy. Used from one thread.
class StrategySide {
 public:
  // Both must outlive the object.
  StrategySide(const Program& program, SynchronousStrategy& strategy);

  // For each replica.
  std::vector<StepArguments> step_arguments(const Call& call, std::size_t number) const;
  // The results of each replica, copied. `is_traced`: by function(), else by run().
  std::vector<Tensors> call(const Call& call, std::size_t number, bool is_traced);
  bool is_wrapped() const { return is_wrapped_; }
  // The components of all variables, and then those of all buffers.
  Tensors values() const;

 private:
  using Body = std::function<Nest(const Nest&, std::int64_t, double, const at::Tensor&)>;

  Variable make_variable(const std::string& name, const at::Tensor& value, bool is_trainable);
  Nest run(const Nest& given, std::int64_t integer, double real, const at::Tensor& factor) const;
  PerReplica<Nest> arguments(const Call& call, std::size_t number) const;

  const Program& program_;
  SynchronousStrategy& strategy_;
  const World world_;
  const Tensors elements_;
  const Body body_ = [this](const Nest& given, std::int64_t integer, double real,
                            const at::Tensor& factor) { return run(given, integer, real, factor); };
  const StrategyFunction<Body> function_ = strategy_.function(body_);
  bool is_wrapped_ = false;
};

// The results of a call, or its error.
struct Outcome {
  std::vector<Tensors> results;
  std::optional<Error> error;
};

Outcome outcome_of(StrategySide& side, const Call& call, std::size_t number, bool is_traced);

// Both describe the first difference; empty if there is none. The first one is for values(), the
// second one for call().
std::string first_difference(const Tensors& got, const Tensors& wanted, Tolerance tolerance);
std::string first_difference(const std::vector<Tensors>& got, const std::vector<Tensors>& wanted,
                             Tolerance tolerance);

// For function() beside run().
Tolerance tolerance_for(const Program& program);
// Removes instructions as long as the program goes wrong.
Program shrunk(Program program, const std::function<bool(const Program&)>& goes_wrong);
// An error's first line without numbers, which differ from program to program.
std::string reason_of(const std::string& error);

}  // namespace cohort::parity
