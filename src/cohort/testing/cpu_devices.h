// SPDX-License-Identifier: Apache-2.0
// The names of devices for strategies with several replicas on one CPU.
#pragma once

#include <string>
#include <vector>

namespace cohort::testing {

// "CPU:0", "CPU:1", …
inline std::vector<std::string> cpu_devices(int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back("CPU:" + std::to_string(i));
  return names;
}

}  // namespace cohort::testing
