// SPDX-License-Identifier: Apache-2.0
// Bringing lost workers back.
#include <optional>
#include <set>
#include <utility>

#include "cohort/coordinator/internal/recovery_pause.h"
#include "cohort/coordinator/internal/worker_pool.h"
#include "cohort/core/detail/start_thread.h"
#include "cohort/core/log.h"

namespace cohort::coordinator {
namespace {

constexpr auto kRecoveryMax = std::chrono::hours(1);

// Blocks for a control call for each function and iterator.
void furnish(std::uint32_t worker, const WorkerPool::Link& link, const Furnishing& furnishing,
             const ClusterConnection& cluster) {
  rpc::ControlClient& control = *link.connection.control;
  for (const auto& step : furnishing.functions)
    control.register_function(*step->body(), cluster.control_deadline());
  if (!furnishing.released.empty())
    control.release(furnishing.released, cluster.control_deadline());
  for (const auto& iterator : furnishing.iterators) {
    control.create_iterator(iterator->spec_for(worker, cluster.options().seed),
                            cluster.control_deadline());
  }
}

}  // namespace

void WorkerPool::begin_recovery(std::uint32_t worker) {
  Entry& lost = entry(worker);
  lost.is_ready = false;
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

// A worker's own thread, started at its first loss: reconnects, rebuilds what it should have, and
// hands it back.
void WorkerPool::recover(std::uint32_t worker) {
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
      if (context_.gives_way(error) || context_.is_over()) return;
      const RuntimeLock lock(context_);
      if (std::exchange(entry(worker).refusal, error.message()) != error.message())
        log_warn("worker:", worker, " cannot be used yet: ", error.what());
      context_.wait(context_.stopped, Deadline::after(pause.next()),
                    [this] { return context_.is_over(); });
    }
  }
}

// Also that of a worker that only said that it is lost. Not under the lock: the end of a connection
// waits for its thread, which asks for the lock to report it.
void WorkerPool::drop_link(std::uint32_t worker) {
  rpc::Connection old;
  {
    const RuntimeLock lock(context_);
    old = std::exchange(entry(worker).link.connection, {});
  }
  if (old.data) old.data->close();
}

// False: it was lost again meanwhile. Functions and iterators that come while it is being furnished
// are sent after the others, so that it is ready with all or not at all.
bool WorkerPool::set_up(std::uint32_t worker, const Link& link) {
  std::optional<std::uint64_t> furnished;
  std::set<std::uint64_t> iterators;  // that the worker has over this link
  while (true) {
    Furnishing furnishing;
    {
      const RuntimeLock lock(context_);
      if (context_.is_over() || entry(worker).lost_connection >= link.epoch) return false;
      if (furnished == context_.version) {
        make_ready(worker, link);
        context_.changed.notify_all();
        break;
      }
      furnished = context_.version;
      furnishing = events_.furnishing(iterators);
    }
    furnish(worker, link, furnishing, context_.connection);
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
