// SPDX-License-Identifier: Apache-2.0
// How a distributed dataset passes its elements to replicas (tf.distribute.InputOptions).
#pragma once

#include <cstdint>
#include <optional>

#include "cohort/core/export.h"

namespace cohort {

enum class ReplicationMode : std::uint8_t {
  per_worker,  // one pipeline feeds all replicas of a worker
  // One pipeline per replica; only for distribute_datasets_from_function() with one worker.
  per_replica,
};

// A value type.
struct COHORT_API InputOptions {
  // True or nullopt: mini-batches are copied ahead into the memory of each replica's device. False:
  // they stay in host memory. For CPU devices nothing is copied in either case.
  std::optional<bool> fetch_to_device = {};
  ReplicationMode replication_mode = ReplicationMode::per_worker;
  // For compatibility with tf, where the pipeline then runs on the replica's device. Requires
  // per_replica and fetch_to_device = false. Cohort's pipelines always run on the host, and the
  // values are the same.
  bool place_dataset_on_device = false;
  // How many mini-batches are copied ahead for each replica. 0: none; each is copied when it is
  // requested. kAutotune: the default.
  std::int64_t per_replica_buffer_size = 1;

  // Throws invalid_argument if fields contradict each other. distribute_dataset() checks only the
  // buffer size; the default strategy checks nothing, since it uses none of the fields.
  void validate() const;
  // per_replica_buffer_size, with kAutotune replaced by the default.
  std::int64_t buffer_size() const;
};

}  // namespace cohort
