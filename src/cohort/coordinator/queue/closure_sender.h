// SPDX-License-Identifier: Apache-2.0
// Sends closures that were dispatched, and cancellations, to the workers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "cohort/coordinator/queue/closure_queue.h"
#include "cohort/coordinator/queue/in_flight_window.h"
#include "cohort/coordinator/queue/pending_closures.h"
#include "cohort/coordinator/queue/sent_closures.h"
#include "cohort/coordinator/runtime/runtime_context.h"
#include "cohort/coordinator/workers/worker_pool.h"

namespace cohort::coordinator {

// batched: a worker that is busy with short closures may get its messages later, with more of them.
enum class Flush : std::uint8_t { all, batched };

// Closures wait in a worker's outbox until flush(), so that the closures of one decision are sent
// in one message. Thread-safe.
class ClosureSender {
 public:
  // All must outlive the sender.
  ClosureSender(RuntimeContext& context, WorkerPool& pool, const ClosureQueue& queue,
                PendingClosures& pending)
      : context_(context), pool_(pool), queue_(queue), pending_(pending) {}

  void add(std::uint32_t worker, ClosureId closure, TimePoint now) COHORT_REQUIRES(runtime_lock);
  void add_cancel(std::uint32_t worker, ClosureId closure) COHORT_REQUIRES(runtime_lock);
  // Removes and returns the closures that were added but not sent.
  std::vector<ClosureId> take_unsent(std::uint32_t worker) COHORT_REQUIRES(runtime_lock);
  // The worker reported this many ends.
  void note_ends(std::uint32_t worker, std::size_t count, TimePoint now)
      COHORT_REQUIRES(runtime_lock);
  // Call it when the worker has a new connection.
  void reset(std::uint32_t worker) COHORT_REQUIRES(runtime_lock);
  // The largest number of closures in flight on the worker.
  std::size_t window_size(std::uint32_t worker) COHORT_REQUIRES(runtime_lock);
  // False only if the closure was not sent over the worker's connection.
  bool may_have_sent(std::uint32_t worker, ClosureId closure) COHORT_REQUIRES(runtime_lock);
  bool has_unflushed() const COHORT_REQUIRES(runtime_lock) { return !to_flush_.empty(); }
  // Sends what was added. Call it without the lock.
  void flush(Flush how);

 private:
  struct Lane {
    internal::InFlightWindow window;
    internal::SentClosures sent;  // over this connection
    std::vector<ClosureId> outbox;
    std::vector<std::uint64_t> cancels;
    bool is_sending = false;
  };
  class Sending;

  Lane& lane(std::uint32_t worker) COHORT_REQUIRES(runtime_lock);
  rpc::ClosureCall call_of(ClosureId closure, PendingClosure& pending)
      COHORT_REQUIRES(runtime_lock);
  bool can_wait(std::uint32_t worker) COHORT_REQUIRES(runtime_lock);
  // Takes the outbox. If it throws, the outbox is unchanged.
  rpc::RunBatch make_batch(Lane& lane) COHORT_REQUIRES(runtime_lock);
  void flush_worker(std::uint32_t worker);

  RuntimeContext& context_;
  WorkerPool& pool_;
  const ClosureQueue& queue_;
  PendingClosures& pending_;
  std::deque<Lane> lanes_ COHORT_GUARDED_BY(runtime_lock);  // by worker
  std::vector<std::uint32_t> to_flush_ COHORT_GUARDED_BY(runtime_lock);
};

}  // namespace cohort::coordinator
