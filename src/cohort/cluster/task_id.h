// SPDX-License-Identifier: Apache-2.0
// The name of one task of a cluster: "worker:1".
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "cohort/core/export.h"

namespace cohort {

// A value type. Orders by job, then by index.
struct COHORT_API TaskId {
  std::string job;
  std::int64_t index = 0;

  // The reverse of to_string(); anything else is invalid_argument.
  static TaskId parse(std::string_view text);
  std::string to_string() const { return job + ":" + std::to_string(index); }

  auto operator<=>(const TaskId&) const = default;
};

}  // namespace cohort

template <>
struct std::hash<cohort::TaskId> {
  std::size_t operator()(const cohort::TaskId& task) const noexcept {
    return std::hash<std::string>()(task.job) * 31 + std::hash<std::int64_t>()(task.index);
  }
};
