// SPDX-License-Identifier: Apache-2.0
// The kinds of in-place writes to a buffer (batch-norm statistics, counters), which tell how the
// writes of several workers can be combined.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <span>

namespace cohort::function {

// One op's write into a buffer. A value type.
struct BufferWrite {
  enum class Kind : std::uint8_t {
    any,     // the new value depends on the old one in an unknown way
    sum,     // adds to integers
    average  // moves the whole buffer towards a batch's statistic
  };
  Kind kind = Kind::any;
  double momentum = 0;       // average: the new value is old + momentum * (statistic - old)
  bool is_variance = false;  // average: its statistic is never negative
};

// The running statistics of an op that updates them (batch_norm, instance_norm). A value type.
struct RunningAverages {
  at::Tensor mean;
  at::Tensor variance;
  double momentum;
};

// nullopt: the op has no such arguments, or does not change them (in evaluation).
std::optional<RunningAverages> running_averages_of(const c10::OperatorHandle& op,
                                                   std::span<const c10::IValue> arguments);

// The kind of the write of `op` to argument `index`. `composite`: the statistics of the composite
// op that `op` is part of.
BufferWrite buffer_write_of(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments,
                            std::size_t index, const std::optional<RunningAverages>& composite);

}  // namespace cohort::function
