// SPDX-License-Identifier: Apache-2.0
// Synchronous replicas on the devices of one process (tf.distribute.MirroredStrategy).
//
//   MirroredStrategy strategy({"CPU:0", "CPU:1"});
#pragma once

#include <string>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/strategy/synchronous_strategy.h"

namespace cohort {

// Thread-safe.
class COHORT_API MirroredStrategy final : public SynchronousStrategy {
 public:
  // Without devices: all GPUs, or CPU:0 if there is none. Throws invalid_argument if a device is
  // listed twice, belongs to another task or does not exist (GPU:7 with two GPUs).
  explicit MirroredStrategy(const std::vector<std::string>& devices = {})
      : SynchronousStrategy({.strategy = "mirrored", .allows_per_replica = true}, devices) {}
};

}  // namespace cohort
