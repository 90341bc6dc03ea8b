// SPDX-License-Identifier: Apache-2.0
// The workers of a coordinator: their connections, and the threads that notice lost workers and
// bring them back. The thread that watches them also logs parameter servers that do not answer.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/cluster/task_health.h"
#include "cohort/coordinator/datasets/iterator_handle.h"
#include "cohort/coordinator/functions/step_function.h"
#include "cohort/coordinator/runtime/runtime_context.h"

namespace cohort::coordinator {

// Everything that a worker must get before it is ready.
struct WorkerSetup {
  std::vector<std::shared_ptr<StepFunction>> functions;
  std::vector<std::uint64_t> released;  // iterators that the worker must release
  std::vector<std::shared_ptr<IteratorHandle>> iterators;
};

// Thread-safe. Workers are numbered from 0; nobody may assume that their number stays the same.
// Many methods because a worker's way from its start over losses to its return is here.
class WorkerPool {
 public:
  using Link = ClusterConnection::WorkerLink;

  // The coordinator's reactions to workers that are lost or ready.
  class Events {
   public:
    virtual ~Events() = default;
    // The worker has everything that it needs, and may get closures.
    virtual void worker_ready(std::uint32_t worker) COHORT_REQUIRES(runtime_lock) = 0;
    // Its closures run elsewhere. Must call begin_recovery(), now or later.
    virtual void worker_lost(std::uint32_t worker, const Error& reason)
        COHORT_REQUIRES(runtime_lock) = 0;
    // For the log: what becomes of the worker's closures.
    virtual std::string consequence_of_loss(std::uint32_t worker) const
        COHORT_REQUIRES(runtime_lock) = 0;
    // Everything of the context's current version that the worker needs. `iterators`: in, those
    // that the worker has; out, those that it will have.
    virtual WorkerSetup worker_setup(std::set<std::uint64_t>& iterators)
        COHORT_REQUIRES(runtime_lock) = 0;
    // Called after each of these, without the lock.
    virtual void flush() = 0;
  };

  // Both must outlive the pool.
  WorkerPool(RuntimeContext& context, Events& events);
  // Takes over the connections that the context's ClusterConnection has made to all workers.
  void start();
  // Closes all connections, and ends the threads. After the context is over, and without the lock.
  void stop() noexcept;
  // The connection with this number has broken; older connections are ignored.
  void on_lost(std::uint32_t worker, std::uint64_t connection, const Error& reason);

  std::uint32_t size() const COHORT_REQUIRES(runtime_lock) {
    return static_cast<std::uint32_t>(entries_.size());
  }
  bool is_ready(std::uint32_t worker) const COHORT_REQUIRES(runtime_lock) {
    return entry(worker).is_ready;
  }
  // The current link of a ready worker, or the last one of a worker that is away.
  const Link& link(std::uint32_t worker) const COHORT_REQUIRES(runtime_lock) {
    return entry(worker).link;
  }
  // The worker is ready, and this is its connection.
  bool is_current(std::uint32_t worker, std::uint64_t connection) const
      COHORT_REQUIRES(runtime_lock) {
    return entry(worker).is_ready && entry(worker).link.epoch == connection;
  }
  std::vector<std::pair<std::uint32_t, Link>> ready_links() const COHORT_REQUIRES(runtime_lock);
  // Returns any worker whose connection is newer than its entry in `passed`. Waits while there is
  // none; returns nullopt after the deadline or if the coordinator has ended.
  std::optional<std::pair<std::uint32_t, Link>> ready_worker(
      const std::vector<std::uint64_t>& passed, Deadline deadline);
  // "away", or "away: why"; empty for a worker that is ready.
  std::string absence_of(std::uint32_t worker) const COHORT_REQUIRES(runtime_lock);

  // Brings a worker back that was lost.
  void begin_recovery(std::uint32_t worker, const Error& reason) COHORT_REQUIRES(runtime_lock);
  // No worker is ready any more.
  void set_all_away() COHORT_REQUIRES(runtime_lock);
  // A closure succeeded there.
  void count_closure(std::uint32_t worker) COHORT_REQUIRES(runtime_lock) {
    ++entry(worker).closures;
  }
  std::vector<WorkerHealth> health() const COHORT_REQUIRES(runtime_lock);

 private:
  struct Entry {
    Link link;
    bool is_ready = false;
    std::uint64_t lost_connection = 0;  // the newest one that is known to be broken
    bool needs_recovery = false;
    std::optional<TimePoint> starts_at;  // of a late start, until its thread knows
    std::thread recovery;
    std::string refusal;         // why it could not be used the last time; empty when it is ready
    std::uint64_t closures = 0;  // that succeeded
    std::uint64_t times_lost = 0;
  };
  // A question to one worker whether it is healthy, over this connection.
  struct HealthCall {
    std::uint64_t connection = 0;
    bool is_silent = false;          // no answer to the control call
    bool is_channel_silent = false;  // nothing came over the data channel
  };

  const Entry& entry(std::uint32_t worker) const COHORT_REQUIRES(runtime_lock) {
    return entries_.at(worker);
  }
  Entry& entry(std::uint32_t worker) COHORT_REQUIRES(runtime_lock) { return entries_.at(worker); }
  void note_loss(std::uint32_t worker, const Error& reason) COHORT_REQUIRES(runtime_lock);
  void make_ready(std::uint32_t worker, const Link& link) COHORT_REQUIRES(runtime_lock);
  void watch();
  std::vector<HealthCall> ask_workers();
  void give_up_silent(std::uint32_t worker, std::uint64_t connection, const std::string& what);
  void start_recovery(std::uint32_t worker) COHORT_REQUIRES(runtime_lock);
  void recover(std::uint32_t worker);
  void start_late(std::uint32_t worker);
  void drop_link(std::uint32_t worker);
  bool set_up(std::uint32_t worker, const Link& link);

  RuntimeContext& context_;
  Events& events_;
  std::deque<Entry> entries_ COHORT_GUARDED_BY(runtime_lock);
  std::thread watcher_;
};

}  // namespace cohort::coordinator
