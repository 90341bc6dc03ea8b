// SPDX-License-Identifier: Apache-2.0
// How operators change a buffer (batch-norm statistics, counters) in place, as far as the changes
// of several workers can be joined.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <span>

namespace cohort::function {

// One op's write into a buffer. A value type.
struct BufferWrite {
  enum class Kind : std::uint8_t {
    any,     // the new value depends on the old one in ways that nobody knows
    sum,     // adds to integers
    average  // moves the whole of it towards a batch's statistic
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

// None: the op has no such arguments, or leaves them as they are (in evaluation).
std::optional<RunningAverages> running_averages_of(const c10::OperatorHandle& op,
                                                   std::span<const c10::IValue> arguments);

// What `op`, which writes into argument `index`, does there. `composite`: the statistics of the
// composite op that it is part of.
BufferWrite buffer_write_of(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments,
                            std::size_t index, const std::optional<RunningAverages>& composite);

}  // namespace cohort::function
