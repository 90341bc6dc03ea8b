// SPDX-License-Identifier: Apache-2.0
// All variables and the only replica on one device (tf.distribute.OneDeviceStrategy). Use it to try
// a program that is written for many replicas.
#pragma once

#include <string>

#include "cohort/core/export.h"
#include "cohort/strategy/synchronous_strategy.h"

namespace cohort {

// Thread-safe.
class COHORT_API OneDeviceStrategy final : public SynchronousStrategy {
 public:
  // Throws invalid_argument for a device that this process does not have.
  explicit OneDeviceStrategy(const std::string& device = "CPU:0")
      : SynchronousStrategy(
            {.strategy = "one_device", .handles_partial_batches = false, .wraps_values = false},
            {device}) {}
};

}  // namespace cohort
