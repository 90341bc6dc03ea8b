// SPDX-License-Identifier: Apache-2.0
// Names the workers for which callers wait, for errors.

#include <functional>
#include <vector>

#include "cohort/coordinator/queue/closure_scheduler.h"

namespace cohort::coordinator {
namespace {

// "worker:0, worker:2 (away: why)": the workers for which `is_one` is true.
std::string names_of(const WorkerPool& pool, const std::function<bool(std::uint32_t)>& is_one,
                     const std::string& of_absent = "") COHORT_REQUIRES(runtime_lock) {
  std::string names;
  for (std::uint32_t i = 0; i < pool.size(); ++i) {
    if (!is_one(i)) continue;
    names += (names.empty() ? "worker:" : ", worker:") + std::to_string(i);
    if (!pool.is_ready(i)) names += " (" + pool.absence_of(i) + of_absent + ")";
  }
  return names;
}

// The worker that runs the closure of `awaited`; empty if none does. Searches all closures, so it
// is only for errors.
std::string holder_of(const ClosureScheduler& scheduler, const RemoteState& awaited)
    COHORT_REQUIRES(runtime_lock) {
  for (const auto& [id, pending] : scheduler.pending().all()) {
    if (pending.result.lock().get() == &awaited && scheduler.queue().is_running(id, pending.worker))
      return "worker:" + std::to_string(pending.worker);
  }
  return "";
}

}  // namespace

std::string still_waiting_for(const ClosureScheduler& scheduler, const WorkerPool& pool,
                              const RemoteState* awaited) {
  const ClosureQueue& queue = scheduler.queue();
  const std::string counts = "; " + std::to_string(queue.in_flight()) + " closures in flight, " +
                             std::to_string(queue.queued()) + " queued";
  const std::string holder = awaited == nullptr ? "" : holder_of(scheduler, *awaited);
  if (!holder.empty()) return holder + ", which runs its closure" + counts;
  std::vector<bool> has_closure(pool.size());
  for (const auto& [id, pending] : scheduler.pending().all()) {
    if (queue.is_running(id, pending.worker)) has_closure[pending.worker] = true;
  }
  const std::string names = names_of(pool, [&](std::uint32_t worker) COHORT_REQUIRES(runtime_lock) {
    return has_closure[worker] || !pool.is_ready(worker);
  });
  return (names.empty() ? "no worker" : names) + counts;
}

std::string epoch_still_waiting_for(const EpochRun& epoch, const ClosureScheduler& scheduler,
                                    const WorkerPool& pool) {
  const std::string names = names_of(
      pool, [&](std::uint32_t worker) { return epoch.progress.waits_for(worker); },
      "; start it again: no other worker has its part of the data");
  return names.empty() ? still_waiting_for(scheduler, pool, nullptr) : names;
}

std::string absent_workers(const WorkerPool& pool) {
  const std::string names = names_of(pool, [&](std::uint32_t worker) COHORT_REQUIRES(runtime_lock) {
    return !pool.is_ready(worker);
  });
  return names.empty() ? "no worker" : names;
}

}  // namespace cohort::coordinator
