// SPDX-License-Identifier: Apache-2.0
// Bringing lost workers back.
#include <optional>
#include <set>
#include <utility>

#include "cohort/coordinator/workers/recovery_pause.h"
#include "cohort/coordinator/workers/worker_pool.h"
#include "cohort/core/log.h"
#include "cohort/core/start_thread.h"

namespace cohort::coordinator {
namespace {

constexpr auto kRecoveryMax = std::chrono::hours(1);

// Blocks for a control call for each function and iterator.
void send_setup(std::uint32_t worker, const WorkerPool::Link& link, const WorkerSetup& setup,
                const ClusterConnection& cluster) {
  rpc::ControlClient& control = *link.connection.control;
  for (const auto& step : setup.functions) step->send(step->body(), control);
  if (!setup.released.empty()) control.release(setup.released, cluster.control_deadline());
  for (const auto& iterator : setup.iterators) {
    control.create_iterator(iterator->spec_for(worker, cluster.options().seed),
                            cluster.control_deadline());
  }
}

}  // namespace

void WorkerPool::begin_recovery(std::uint32_t worker, const Error& reason) {
  Entry& lost = entry(worker);
  if (lost.is_ready) note_loss(worker, reason);  // its connection is there, but it reported a loss
  lost.needs_recovery = true;
  ++lost.times_lost;
  start_recovery(worker);
}

// If the system has no thread left, watch() tries again.
void WorkerPool::start_recovery(std::uint32_t worker) {
  Entry& lost = entry(worker);
  if (lost.recovery.joinable() || context_.is_stopping) return;
  try {
    lost.recovery = start_thread("to reconnect to a worker", [this, worker] { recover(worker); });
  } catch (...) {
    const Error error = current_error();
    if (std::exchange(lost.refusal, error.message()) != error.message())
      log_warn("worker:", worker, " cannot be brought back yet: ", error.what());
  }
}

// Runs on the worker's own thread, which starts at its first loss, or for its late start:
// reconnects, sets the worker up, and makes it ready.
void WorkerPool::recover(std::uint32_t worker) {
  start_late(worker);
  internal::RecoveryPause pause;
  while (!context_.is_over()) {
    {
      const RuntimeLock lock(context_);
      context_.wait(context_.changed, Deadline(), [&]() COHORT_REQUIRES(runtime_lock) {
        return context_.is_over() || entry(worker).needs_recovery;
      });
      if (context_.is_over()) return;
    }
    drop_link(worker);
    try {
      const Link link = context_.connection.reconnect_worker(worker, Deadline::after(kRecoveryMax),
                                                             [this] { return context_.is_over(); });
      if (!set_up(worker, link)) continue;
      log_warn("worker:", worker, " is back");
      pause.reset();
    } catch (...) {
      const Error error = current_error();
      if (context_.end_if_replaced(error) || context_.is_over()) return;
      const RuntimeLock lock(context_);
      if (std::exchange(entry(worker).refusal, error.message()) != error.message())
        log_warn("worker:", worker, " cannot be used yet: ", error.what());
      context_.wait(context_.stopped, Deadline::after(pause.next()),
                    [this] { return context_.is_over(); });
    }
  }
}

// Sets the worker up at its time. If that fails, it still needs a recovery.
void WorkerPool::start_late(std::uint32_t worker) {
  Link link;
  {
    const RuntimeLock lock(context_);
    Entry& one = entry(worker);
    const std::optional<TimePoint> time = std::exchange(one.starts_at, std::nullopt);
    if (!time) return;
    link = one.link;
    context_.wait(context_.stopped, Deadline(*time), [this] { return context_.is_over(); });
  }
  if (context_.is_over()) return;
  try {
    set_up(worker, link);
  } catch (...) {
    log_warn("worker:", worker, " cannot be started yet: ", current_error().what());
  }
}

// Closes the last connection, even if it is intact and the worker only reported that it is lost.
// Call it without the lock: closing waits for the connection's thread, which takes the lock to
// report the end.
void WorkerPool::drop_link(std::uint32_t worker) {
  rpc::Connection old;
  {
    const RuntimeLock lock(context_);
    old = std::exchange(entry(worker).link.connection, {});
  }
  if (old.data) old.data->close();
}

// Returns false if the worker was lost again meanwhile. Functions and iterators that are added
// meanwhile are sent in another round, so that a ready worker has all of them.
bool WorkerPool::set_up(std::uint32_t worker, const Link& link) {
  std::optional<std::uint64_t> sent_version;
  std::set<std::uint64_t> iterators;  // iterators that the worker has over this link
  while (true) {
    WorkerSetup setup;
    {
      const RuntimeLock lock(context_);
      if (context_.is_over() || entry(worker).lost_connection >= link.epoch) return false;
      if (sent_version == context_.version) {
        make_ready(worker, link);
        context_.changed.notify_all();
        break;
      }
      sent_version = context_.version;
      setup = events_.worker_setup(iterators);
    }
    send_setup(worker, link, setup, context_.connection);
  }
  events_.flush();
  return true;
}

void WorkerPool::make_ready(std::uint32_t worker, const Link& link) {
  Entry& one = entry(worker);
  one.link = link;
  one.is_ready = true;
  one.needs_recovery = false;
  one.refusal.clear();
  events_.worker_ready(worker);
}

}  // namespace cohort::coordinator
