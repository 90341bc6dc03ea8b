// SPDX-License-Identifier: Apache-2.0
// The steps of a training whose workers are servers of a coordinator.
#include <ATen/core/TensorBody.h>

#include <algorithm>
#include <cstddef>
#include <deque>

#include "cohort/estimator/training/training_run.h"

namespace cohort::estimator {
namespace {

// Steps that wait or run at a time, for each worker: enough for those that it has in flight.
constexpr std::size_t kStepsAheadPerWorker = 16;

}  // namespace

// Steps end before a checkpoint, so that it is of the step that it names.
void TrainingRun::run_scheduled(ClusterCoordinator& coordinator, const Function& step,
                                const PerWorkerDataset& data) {
  const PerWorkerIterator elements = data.iterator();
  const std::size_t ahead =
      kStepsAheadPerWorker * static_cast<std::size_t>(coordinator.num_workers());
  std::deque<RemoteValue> begun;
  const auto may_begin = [&] {
    const std::int64_t next = step_ + std::ssize(begun);
    const std::optional<std::int64_t> save = saver_->next_step();
    return begun.size() < ahead && has_more(next) && (!save || next < *save) &&
           (begun.empty() || !saver_->is_due_by_time(step_));
  };
  while (true) {
    while (may_begin()) {
      before_step();
      begun.push_back(coordinator.schedule(step, elements));
    }
    if (begun.empty()) return;
    const RemoteValue value = begun.front();
    begun.pop_front();
    const at::Tensor loss = value.fetch().tensor();
    after_step([loss] { return loss; }, begun.empty());
  }
}

void TrainingRun::run_epoch(ClusterCoordinator& coordinator, const Function& step,
                            const PerWorkerDataset& data) {
  Epoch epoch = coordinator.begin_epoch(step, data);
  while (has_more(step_)) {
    before_step();
    const std::optional<EpochStep> done = epoch.try_next();
    if (!done) return;
    after_step([result = done->result] { return result.tensor(); }, true);
  }
}

}  // namespace cohort::estimator
