// SPDX-License-Identifier: Apache-2.0
// The status of a step, which all workers learn before one of them returns from it: whether there
// is data left, and the first error. So an error of one worker is thrown on every worker, and none
// waits for a worker that will not come.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cohort/collective/group.h"
#include "cohort/core/bytes.h"
#include "cohort/core/error.h"

namespace cohort::input {

// The status of one worker's part of a step, or of the whole step.
struct StepStatus {
  std::int64_t components = 0;  // replicas that have data
  std::int64_t examples = 0;
  // The error took the place of a whole global batch, so the other workers drop their parts of it.
  bool costs_batch = false;
  std::optional<Error> error;
};

Bytes encode(const StepStatus& status);
// The sum of what the workers of the group have encoded. Its error is that of the first worker that
// has one, with the worker as origin.
StepStatus sum_of(const std::vector<Bytes>& all, const collective::Group& group);

}  // namespace cohort::input
