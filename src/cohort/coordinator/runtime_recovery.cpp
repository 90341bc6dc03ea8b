// SPDX-License-Identifier: Apache-2.0
// Noticing that workers are lost, and bringing them back.
#include <algorithm>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "cohort/coordinator/internal/coordinator_options.h"
#include "cohort/coordinator/internal/recovery_pause.h"
#include "cohort/coordinator/internal/runtime.h"
#include "cohort/coordinator/internal/silence_count.h"
#include "cohort/core/detail/start_thread.h"
#include "cohort/core/log.h"

namespace cohort::coordinator {
namespace {

constexpr auto kRecoveryMax = std::chrono::hours(1);
// A pause of a half and two silences of three fifths of a heartbeat: less than two heartbeats, also
// where a round has just begun.
constexpr int kPausesPerHeartbeat = 2;

}  // namespace

void Runtime::on_lost(std::uint32_t worker, std::uint64_t epoch, const Error& reason) {
  if (is_over() || gives_way(reason)) return;
  {
    const Lock lock(mutex_);
    Worker& lost = workers_[worker];
    lost.lost_epoch = std::max(lost.lost_epoch, epoch);
    const bool is_broken =
        reason.code() == ErrorCode::data_loss && reason.cause() == ErrorCause::peer_lost;
    if (is_broken) ++totals_.broken_frames;
    if (!lost.is_ready || lost.link.epoch != epoch) return;
    const std::string name = "worker:" + std::to_string(worker);
    const std::string text = reason.message() + what_follows_the_loss(worker);
    errors_.note(Error(reason.code(), text, reason.cause()).at(name));
    log_warn("lost ", name, ": ", text);
    lost.is_ready = false;
    empty_outbox(lost);
    if (std::none_of(workers_.begin(), workers_.end(),
                     [](const Worker& one) { return one.is_ready; })) {
      log_warn(
          "no worker is left: what is scheduled waits until one returns, and calls wait for it, ",
          internal::seconds_of(data_timeout_), " s at most; start the workers again");
    }
    Actions actions;
    queue_.worker_lost(worker, Error(reason).at("worker:" + std::to_string(worker)),
                       Clock::system().now(), actions);
    carry_out(actions);
  }
  flush();
}

// For the log and for `cohort status`.
std::string Runtime::what_follows_the_loss(std::uint32_t worker) const {
  const bool is_waited_for = std::any_of(epochs_.begin(), epochs_.end(), [&](const auto& weak) {
    const std::shared_ptr<EpochRun> epoch = weak.lock();
    return epoch != nullptr && !epoch->is_over && !epoch->error &&
           epoch->progress.waits_for(worker);
  });
  return is_waited_for ? "; the epoch waits until it returns, as no other worker has its part of "
                         "the data: start it again; closures of no epoch run elsewhere"
                       : "; its closures run elsewhere until it returns";
}

// A worker that is stopped, or whose host is, keeps its connection. All are asked at once, so that
// any number of them is noticed within two heartbeats. Runs on a thread of its own.
void Runtime::watch() {
  std::vector<internal::SilenceCount> silences(connection_.num_workers());
  while (true) {
    {
      const Lock lock(mutex_);
      stopped_.wait(mutex_, Deadline::after(options_.heartbeat / kPausesPerHeartbeat),
                    [this] { return is_over(); });
    }
    if (is_over()) return;
    {
      const Lock lock(mutex_);
      for (std::uint32_t i = 0; i < workers_.size(); ++i)
        if (workers_[i].needs_recovery) start_recovery(i);
    }
    std::vector<HealthCall> calls;
    try {
      calls = ask_workers();
    } catch (...) {  // of too little memory
      log_error("asking the workers for their health failed: ", current_error().what());
      continue;
    }
    for (std::uint32_t i = 0; i < silences.size(); ++i) {
      if (!silences[i].add(calls[i].epoch, calls[i].is_silent)) continue;
      const Lock lock(mutex_);
      const Worker& worker = workers_[i];
      if (!worker.is_ready || worker.link.epoch != calls[i].epoch) continue;
      log_warn("worker:", i, " does not answer");
      worker.link.connection.data->close();
    }
  }
}

// Silent is neither one that is away nor one that says no, as a worker does that is ending.
std::vector<Runtime::HealthCall> Runtime::ask_workers() {
  std::vector<std::shared_ptr<rpc::ControlClient>> asked(connection_.num_workers());
  std::vector<HealthCall> calls(asked.size());
  {
    const Lock lock(mutex_);
    for (std::size_t i = 0; i < asked.size(); ++i) {
      if (!workers_[i].is_ready) continue;
      asked[i] = workers_[i].link.connection.control;
      calls[i].epoch = workers_[i].link.epoch;
    }
  }
  const Deadline deadline = Deadline::after(options_.heartbeat * 3 / 5);
  const std::vector<std::optional<Error>> errors = rpc::health_of_all(asked, deadline);
  for (std::size_t i = 0; i < calls.size(); ++i)
    calls[i].is_silent = errors[i] && errors[i]->code() == ErrorCode::deadline_exceeded;
  return calls;
}

// If the system has no thread left, watch() tries again.
void Runtime::start_recovery(std::uint32_t index) {
  Worker& worker = workers_[index];
  if (worker.recovery.joinable() || is_stopping_) return;
  try {
    worker.recovery = start_thread("to reconnect to a worker", [this, index] { recover(index); });
  } catch (...) {
    const Error error = current_error();
    if (std::exchange(worker.refusal, error.message()) != error.message())
      log_warn("worker:", index, " cannot be brought back yet: ", error.what());
  }
}

// A worker's own thread, started at its first loss: reconnects, rebuilds what it should have, and
// hands it back.
void Runtime::recover(std::uint32_t index) {
  internal::RecoveryPause pause;
  while (!is_over()) {
    {
      const Lock lock(mutex_);
      changed_.wait(mutex_, Deadline(), [&]() COHORT_NO_THREAD_SAFETY_ANALYSIS {
        return is_over() || workers_[index].needs_recovery;
      });
      if (is_over()) return;
    }
    drop_link(index);
    try {
      const auto link = connection_.reconnect_worker(index, Deadline::after(kRecoveryMax),
                                                     [this] { return is_over(); });
      if (!set_up(index, link)) continue;
      log_warn("worker:", index, " is back");
      pause.reset();
    } catch (...) {
      const Error error = current_error();
      if (gives_way(error) || is_over()) return;
      const Lock lock(mutex_);
      if (std::exchange(workers_[index].refusal, error.message()) != error.message())
        log_warn("worker:", index, " cannot be used yet: ", error.what());
      stopped_.wait(mutex_, Deadline::after(pause.next()), [this] { return is_over(); });
    }
  }
}

// Also that of a worker that only said that it is lost. Not under the lock: the end of a connection
// waits for its thread, which asks for the lock to report it.
void Runtime::drop_link(std::uint32_t index) {
  rpc::Connection old;
  {
    const Lock lock(mutex_);
    old = std::exchange(workers_[index].link.connection, {});
  }
  if (old.data) old.data->close();
}

// False: it was lost again meanwhile. Functions and iterators that come while it is being furnished
// are sent after the others, so that it is ready with all or not at all.
bool Runtime::set_up(std::uint32_t index, const ClusterConnection::WorkerLink& link) {
  std::optional<std::uint64_t> furnished;
  std::set<std::uint64_t> made;  // iterators that the worker has over this link
  while (true) {
    Furnishing furnishing;
    {
      const Lock lock(mutex_);
      if (is_over() || workers_[index].lost_epoch >= link.epoch) return false;
      if (furnished == version_) {
        Actions actions;
        make_ready(index, link, actions);
        carry_out(actions);
        changed_.notify_all();
        break;
      }
      furnishing.version = version_;
      furnishing.functions = needed_steps();
      // Those that were dropped meanwhile: only workers that are ready were told.
      std::erase_if(made, [&](std::uint64_t id) COHORT_NO_THREAD_SAFETY_ANALYSIS {
        if (iterators_.contains(id)) return false;
        furnishing.released.push_back(id);
        return true;
      });
      for (const auto& [id, weak] : iterators_) {
        if (auto iterator = weak.lock()) {
          made.insert(id);
          furnishing.iterators.push_back(std::move(iterator));
        }
      }
    }
    furnish(index, link, furnishing);
    furnished = furnishing.version;
  }
  flush();
  return true;
}

void Runtime::furnish(std::uint32_t index, const ClusterConnection::WorkerLink& link,
                      const Furnishing& furnishing) {
  rpc::ControlClient& control = *link.connection.control;
  for (const auto& step : furnishing.functions)
    control.register_function(*step->body(), connection_.control_deadline());
  if (!furnishing.released.empty())
    control.release(furnishing.released, connection_.control_deadline());
  for (const auto& iterator : furnishing.iterators) {
    control.create_iterator(iterator->spec_for(index, connection_.options().seed),
                            connection_.control_deadline());
  }
}

void Runtime::make_ready(std::uint32_t index, const ClusterConnection::WorkerLink& link,
                         Actions& actions) {
  Worker& worker = workers_[index];
  worker.link = link;
  worker.is_ready = true;
  worker.needs_recovery = false;
  worker.refusal.clear();
  worker.window.reset();
  worker.sent.clear();
  queue_.set_in_flight(index, worker.window.size(), actions);
  queue_.worker_ready(index, Clock::system().now(), actions);
}

}  // namespace cohort::coordinator
