// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/worker_calls.h"

#include "cohort/core/error.h"

namespace cohort::collective {

WorkerCalls::Running::Running(WorkerCalls& calls, std::string_view call) : calls_(calls) {
  const Lock lock(calls_.mutex_);
  COHORT_CHECK(calls_.depth_ == 0 || calls_.thread_ == std::this_thread::get_id(),
               ErrorCode::failed_precondition, "[strategy.", call,
               "] expected no other call in which the workers of this strategy wait for each "
               "other, got ",
               call, "() while ", calls_.call_,
               "() runs on another thread; workers match these calls by their order, so make them "
               "from one thread at a time, in the same order on all workers");
  if (calls_.depth_++ > 0) return;
  calls_.thread_ = std::this_thread::get_id();
  calls_.call_ = call;
}

WorkerCalls::Running::~Running() {
  const Lock lock(calls_.mutex_);
  --calls_.depth_;
}

}  // namespace cohort::collective
