// SPDX-License-Identifier: Apache-2.0
// The implementation of the coordinator's handles: owns its parts, and starts and stops their
// threads.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/coordinator/datasets/dataset_programs.h"
#include "cohort/coordinator/datasets/distributed_datasets.h"
#include "cohort/coordinator/datasets/iterator_table.h"
#include "cohort/coordinator/epochs/epoch_scheduler.h"
#include "cohort/coordinator/functions/callers.h"
#include "cohort/coordinator/functions/eager_runs.h"
#include "cohort/coordinator/functions/function_publisher.h"
#include "cohort/coordinator/queue/closure_scheduler.h"
#include "cohort/coordinator/queue/deadline_watch.h"
#include "cohort/coordinator/runtime/runtime_context.h"
#include "cohort/coordinator/workers/health_listener.h"
#include "cohort/coordinator/workers/worker_pool.h"
#include "cohort/core/random.h"

namespace cohort::coordinator {

// Thread-safe. Many methods because it has the calls of all handles, and the reactions to workers
// that are lost or ready.
class Runtime final : public std::enable_shared_from_this<Runtime>, private WorkerPool::Events {
 public:
  Runtime(ParameterServerStrategy& strategy, CoordinatorOptions options,
          CoordinatorNumbers numbers);
  ~Runtime() override;
  void start();
  // Ends the coordinator and cancels closures that have not ended. After it no thread of the
  // coordinator runs. It blocks for a few seconds at most, while a connection is being made.
  // Idempotent.
  void stop() noexcept;
  // The numbers with which the next coordinator continues; call it after stop().
  CoordinatorNumbers numbers();

  ParameterServerStrategy& strategy() const { return context_->strategy; }
  const CoordinatorOptions& options() const { return context_->options; }
  DistributedDatasets& datasets() { return datasets_; }
  RemoteValue schedule(const Function& fn, std::vector<Nest> arguments,
                       const ScheduleOptions& how = {});
  std::vector<RemoteValue> schedule_many(const Function& fn, std::vector<std::vector<Nest>> calls,
                                         const ScheduleOptions& how);
  // See Callers.
  bool join(std::optional<Duration> timeout);
  bool done();
  void pause(std::string_view call) { callers_.pause(call); }
  void resume() { callers_.resume(); }
  void wait_for(const RemoteState& state, Deadline deadline) { callers_.wait_for(state, deadline); }
  std::shared_ptr<IteratorHandle> create_iterator(std::shared_ptr<WorkerDatasets> datasets,
                                                  const IteratorHandle::Use& use = {});
  // See IteratorTable.
  void release_iterator(std::uint64_t id, std::shared_ptr<WorkerDatasets> datasets) noexcept {
    iterators_.release(id, std::move(datasets));
  }
  // See Epoch.
  std::shared_ptr<EpochRun> begin_epoch(const Function& fn,
                                        const std::shared_ptr<WorkerDatasets>& datasets,
                                        std::vector<Nest> arguments,
                                        const EpochOptions& options = {});
  std::optional<EpochStep> next_step(const std::shared_ptr<EpochRun>& epoch);
  // next_step() throws `why` from now on; nullopt if nobody will call it.
  void give_up(EpochRun& epoch, const std::optional<Error>& why = std::nullopt) noexcept {
    epochs_.give_up(epoch, why);
  }
  // See PerWorkerDataset. Where the workers are in the dataset, as bytes.
  Bytes save_position(const WorkerDatasets& datasets);
  void restore_position(const WorkerDatasets& datasets, std::span<const std::byte> position);
  // Until the result is destroyed, no epoch schedules steps, and no step of one is open
  // (EpochScheduler::hold()).
  std::shared_ptr<void> hold_epochs();
  CoordinatorStatistics statistics() const;
  // The answer to GetHealth at the coordinator's own address.
  TaskHealth health() const;
  // The number of closures that have not ended, for which data is kept.
  std::size_t pending_count() const;

 private:
  // Called after the pool has started.
  void worker_ready(std::uint32_t worker) override COHORT_REQUIRES(runtime_lock) {
    scheduler_.worker_ready(worker);
  }
  void worker_lost(std::uint32_t worker, const Error& reason) override
      COHORT_REQUIRES(runtime_lock) {
    scheduler_.worker_lost(worker, reason);
  }
  std::string consequence_of_loss(std::uint32_t worker) const override
      COHORT_REQUIRES(runtime_lock);
  WorkerSetup worker_setup(std::set<std::uint64_t>& iterators) override
      COHORT_REQUIRES(runtime_lock);
  void flush() override { scheduler_.flush(); }

  std::shared_ptr<const ServerSnapshot> snapshot_for(const Function& fn,
                                                     std::span<const Nest> arguments);
  void check_schedule(const Function& fn, std::span<const std::vector<Nest>> calls,
                      const ScheduleOptions& how) const;
  PendingClosure new_closure(const Function& fn, std::vector<Nest>& arguments,
                             const ScheduleOptions& how,
                             const std::shared_ptr<RemoteState>& result);
  void put(std::span<PendingClosure> closures, const ScheduleOptions& how, Deadline deadline);
  void on_frame(std::uint32_t worker, std::uint64_t connection, rpc::Frame frame);
  void on_replaced(const Error& error);
  void warn_of_unfinished_work() COHORT_REQUIRES(runtime_lock);

  const std::shared_ptr<RuntimeContext> context_;  // shared with answers that arrive too late
  DistributedDatasets datasets_;
  OpenEpochs open_epochs_;  // used only under the lock
  WorkerPool pool_;
  EagerRuns eager_;
  IteratorTable iterators_;
  DatasetPrograms dataset_programs_;
  FunctionPublisher functions_;
  ClosureScheduler scheduler_;
  DeadlineWatch deadline_watch_;
  Callers callers_;
  EpochScheduler epochs_;
  std::unique_ptr<internal::HealthListener> listener_;
  // Anybody may read this number. The connection's incarnation is a secret: a task that knows it
  // can act as the coordinator.
  const std::uint64_t public_incarnation_ = draw_number();
  const TimePoint started_ = Clock::system().now();
  const int uncaught_at_start_ = std::uncaught_exceptions();
};

}  // namespace cohort::coordinator
