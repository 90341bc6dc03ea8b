// SPDX-License-Identifier: Apache-2.0
// How a distributed dataset passes its elements to replicas (tf.distribute.InputOptions).
#pragma once

#include <cstdint>
#include <optional>

#include "cohort/core/export.h"

namespace cohort {

enum class ReplicationMode : std::uint8_t {
  per_worker,   // one pipeline feeds all replicas of a worker
  per_replica,  // one pipeline per replica: distribute_datasets_from_function() of one worker only
};

// A value type.
struct COHORT_API InputOptions {
  // Mini-batches are copied ahead into the memory of each replica's device; false: they stay in
  // host memory. nullopt: true. For CPU devices both are the same, and nothing is copied.
  std::optional<bool> fetch_to_device = {};
  ReplicationMode replication_mode = ReplicationMode::per_worker;
  // The pipeline runs on the replica's device: requires per_replica and fetch_to_device = false. In
  // Cohort pipelines always run on the host, so the values are the same.
  bool place_dataset_on_device = false;
  // How many mini-batches are copied ahead for each replica; 0: each when asked for; kAutotune: the
  // default.
  std::int64_t per_replica_buffer_size = 1;

  // Throws invalid_argument for fields that contradict each other. distribute_dataset() checks only
  // the buffer size, and the default strategy nothing, as it uses none of them.
  void validate() const;
  // The number that per_replica_buffer_size means.
  std::int64_t buffer_size() const;
};

}  // namespace cohort
