// SPDX-License-Identifier: Apache-2.0
// The iterators that a coordinator has created on its workers, and those that the workers must
// release.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "cohort/coordinator/datasets/iterator_handle.h"
#include "cohort/coordinator/functions/eager_runs.h"
#include "cohort/coordinator/runtime/runtime_context.h"
#include "cohort/coordinator/workers/worker_pool.h"
#include "cohort/core/mutex.h"

namespace cohort::coordinator {

// Thread-safe.
class IteratorTable {
 public:
  // All must outlive it. `left`: iterators of an earlier coordinator, which the workers must
  // release.
  IteratorTable(RuntimeContext& context, WorkerPool& pool, EagerRuns& eager,
                std::vector<std::uint64_t> left)
      : context_(context), pool_(pool), eager_(eager), released_(std::move(left)) {}

  // Creates an iterator on every worker. Blocks for a control call to each worker.
  std::shared_ptr<IteratorHandle> create(std::shared_ptr<WorkerDatasets> datasets,
                                         const IteratorHandle::Use& use,
                                         std::weak_ptr<Runtime> runtime);
  // Called when the last copy of the handle is destroyed, perhaps under a lock. `datasets` hold the
  // user's objects, so they are destroyed later.
  void release(std::uint64_t id, std::shared_ptr<WorkerDatasets> datasets) noexcept;

  std::shared_ptr<IteratorHandle> find(std::uint64_t id) const COHORT_REQUIRES(runtime_lock);
  // All that are used. Do not destroy the last copy of one under the lock.
  std::vector<std::shared_ptr<IteratorHandle>> used() const COHORT_REQUIRES(runtime_lock);
  // For a worker that returns and has the iterators `known`: removes the dropped ones from `known`
  // and returns them, since only workers that were ready had been told to release them.
  std::vector<std::uint64_t> take_dropped(std::set<std::uint64_t>& known) const
      COHORT_REQUIRES(runtime_lock);
  // All iterators that workers may still have, for the next coordinator.
  std::vector<std::uint64_t> take_left();

 private:
  void tell(const rpc::Connection& worker, const rpc::IteratorSpec& created,
            const std::vector<std::uint64_t>& released);

  RuntimeContext& context_;
  WorkerPool& pool_;
  EagerRuns& eager_;
  std::unordered_map<std::uint64_t, std::weak_ptr<IteratorHandle>> iterators_
      COHORT_GUARDED_BY(runtime_lock);
  // A separate lock, because the last copy of a handle may be destroyed while the other is held.
  Mutex released_mutex_;
  std::vector<std::uint64_t> released_ COHORT_GUARDED_BY(released_mutex_);
  std::vector<std::shared_ptr<WorkerDatasets>> released_datasets_
      COHORT_GUARDED_BY(released_mutex_);
};

}  // namespace cohort::coordinator
