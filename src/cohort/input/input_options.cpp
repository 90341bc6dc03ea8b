// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/error.h"
#include "cohort/data/dataset.h"
#include "cohort/input/distributed_dataset.h"

namespace cohort {

void InputOptions::validate() const {
  COHORT_CHECK(buffer_size() >= 0, ErrorCode::invalid_argument,
               "[input.options] expected per_replica_buffer_size >= 0 or kAutotune, got ",
               per_replica_buffer_size, "; use 0 to fetch each mini-batch when it is asked for");
  if (!place_dataset_on_device) return;
  COHORT_CHECK(replication_mode == ReplicationMode::per_replica, ErrorCode::invalid_argument,
               "[input.options] expected replication_mode per_replica with "
               "place_dataset_on_device, got per_worker");
  COHORT_CHECK(!fetch_to_device.value_or(true), ErrorCode::invalid_argument,
               "[input.options] expected fetch_to_device = false with place_dataset_on_device, got "
               "true: what a device makes itself is not fetched to it");
}

std::int64_t InputOptions::buffer_size() const {
  return per_replica_buffer_size == kAutotune ? InputOptions().per_replica_buffer_size
                                              : per_replica_buffer_size;
}

}  // namespace cohort
