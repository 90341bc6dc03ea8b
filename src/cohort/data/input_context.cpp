// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/dataset_options.h"

#include "cohort/core/error.h"

namespace cohort {

std::int64_t InputContext::get_per_replica_batch_size(std::int64_t global_batch_size) const {
  COHORT_CHECK(num_replicas_in_sync > 0, ErrorCode::invalid_argument,
               "[data.input_context] expected num_replicas_in_sync > 0, got ",
               num_replicas_in_sync);
  COHORT_CHECK(global_batch_size % num_replicas_in_sync == 0, ErrorCode::invalid_argument,
               "[data.input_context] expected a global batch size that num_replicas_in_sync = ",
               num_replicas_in_sync, " divides, got ", global_batch_size);
  return global_batch_size / num_replicas_in_sync;
}

std::string InputContext::to_string() const {
  return "tf.distribute.InputContext(input pipeline id " + std::to_string(input_pipeline_id) +
         ", total: " + std::to_string(num_input_pipelines) + ")";
}

}  // namespace cohort
