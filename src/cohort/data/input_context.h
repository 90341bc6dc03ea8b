// SPDX-License-Identifier: Apache-2.0
// Tells an input pipeline which one of several it is (tf.distribute.InputContext).
#pragma once

#include <cstdint>
#include <string>

#include "cohort/core/export.h"

namespace cohort {

// A value type.
struct COHORT_API InputContext {
  std::int64_t num_input_pipelines = 1;
  std::int64_t input_pipeline_id = 0;
  std::int64_t num_replicas_in_sync = 1;

  // global / num_replicas_in_sync; invalid_argument if it is not divisible.
  std::int64_t get_per_replica_batch_size(std::int64_t global_batch_size) const;
  // "tf.distribute.InputContext(input pipeline id 0, total: 2)"
  std::string to_string() const;
};

}  // namespace cohort
