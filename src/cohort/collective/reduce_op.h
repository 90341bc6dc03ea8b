// SPDX-License-Identifier: Apache-2.0
// How the values of several replicas or workers are combined.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/export.h"

namespace cohort {

// tf.distribute.ReduceOp.
enum class ReduceOp : std::uint8_t { sum, mean };

// A ReduceOp, or its name in any letter case, "SUM". A value type.
class COHORT_API ReduceOpOrName {
 public:
  ReduceOpOrName(ReduceOp op) : op_(op) {}  // NOLINT: conversions are the point
  // Throws invalid_argument for any other text.
  ReduceOpOrName(std::string_view name);                                        // NOLINT
  ReduceOpOrName(const char* name) : ReduceOpOrName(std::string_view(name)) {}  // NOLINT
  operator ReduceOp() const { return op_; }                                     // NOLINT

 private:
  ReduceOp op_;
};

// Dimensions of a tensor; a negative number counts from the last one. A value type.
class COHORT_API Axes {
 public:
  Axes(std::int64_t axis) : numbers_{axis} {}                         // NOLINT
  Axes(std::initializer_list<std::int64_t> axes) : numbers_(axes) {}  // NOLINT
  explicit Axes(std::vector<std::int64_t> axes) : numbers_(std::move(axes)) {}
  const std::vector<std::int64_t>& numbers() const { return numbers_; }

 private:
  std::vector<std::int64_t> numbers_;
};

}  // namespace cohort
