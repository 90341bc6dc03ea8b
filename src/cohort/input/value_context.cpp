// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/distributed_dataset.h"

namespace cohort {

std::string ValueContext::to_string() const {
  // Two blanks, as in tf.
  return "tf.distribute.ValueContext(replica id " + std::to_string(replica_id_in_sync_group) +
         ",  total replicas in sync: " + std::to_string(num_replicas_in_sync) + ")";
}

}  // namespace cohort
