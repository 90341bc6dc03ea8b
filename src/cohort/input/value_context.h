// SPDX-License-Identifier: Apache-2.0
// The replica for which a value is made (tf.distribute.ValueContext).
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "cohort/core/export.h"
#include "cohort/core/nest.h"

namespace cohort {

// A value type.
struct COHORT_API ValueContext {
  std::int64_t replica_id_in_sync_group = 0;
  std::int64_t num_replicas_in_sync = 1;

  // "tf.distribute.ValueContext(replica id 2,  total replicas in sync: 4)"
  std::string to_string() const;
};

using ValueFunction = std::function<Nest(const ValueContext& context)>;

}  // namespace cohort
