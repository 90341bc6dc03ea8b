// SPDX-License-Identifier: Apache-2.0
// The name of a compute device, written as in tf.
//
//   Device::parse("gpu:1").to_string();           // "GPU:1"
//   Device::parse("/job:ps/task:2/CPU:0").task;  // 2
#pragma once

#include <compare>
#include <ostream>
#include <string>
#include <string_view>

#include "cohort/core/export.h"

namespace cohort {

// A value type.
struct COHORT_API Device {
  std::string type = "CPU";  // upper case
  int index = 0;
  // The task that the device belongs to. An empty job means this process; `task` is then 0.
  std::string job = {};
  int task = 0;

  // Accepts "CPU", "cpu:1", "/device:GPU:0", "/job:ps/task:2/CPU:0",
  // "/job:ps/replica:0/task:2/device:CPU:0" and "job:ps/task:2" (its CPU:0). Throws
  // invalid_argument for anything else.
  static Device parse(std::string_view text);
  bool is_local() const { return job.empty(); }
  // "GPU:1", or "/job:ps/task:2/CPU:0" for a device of a named task. parse() reads both forms.
  std::string to_string() const;
  friend std::ostream& operator<<(std::ostream& out, const Device& device) {
    return out << device.to_string();
  }

  auto operator<=>(const Device&) const = default;
};

}  // namespace cohort
