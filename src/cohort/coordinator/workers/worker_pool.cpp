// SPDX-License-Identifier: Apache-2.0
// Which workers are there, and noticing those that do not answer.
#include "cohort/coordinator/workers/worker_pool.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "cohort/coordinator/runtime/coordinator_options.h"
#include "cohort/coordinator/workers/ps_silence.h"
#include "cohort/coordinator/workers/worker_silence.h"
#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/core/start_thread.h"

namespace cohort::coordinator {
namespace {

// A pause of a half and two silences of three fifths of a heartbeat: less than two heartbeats, also
// where a round has just begun.
constexpr int kPausesPerHeartbeat = 2;

// The consequence of a parameter server's silence, for the log.
std::string consequence_of_silence(const RuntimeContext& context) {
  const Duration data_timeout = context.connection.options().data_timeout;
  const bool is_data = data_timeout <= context.data_timeout;
  std::ostringstream text;
  text << "steps and reads that need its variables wait for it, "
       << seconds_of(is_data ? data_timeout : context.data_timeout) << " s at most ("
       << (is_data ? "ClusterOptions::data_timeout" : "CoordinatorOptions::progress_timeout")
       << "), and then fail; see whether it or its host hangs, or the network to it";
  return text.str();
}

}  // namespace

WorkerPool::WorkerPool(RuntimeContext& context, Events& events)
    : context_(context), events_(events), entries_(context.connection.num_workers()) {}

void WorkerPool::start() {
  {
    const RuntimeLock lock(context_);
    for (std::uint32_t i = 0; i < size(); ++i) {
      const Link link = context_.connection.worker(i);
      const bool is_lost = entry(i).lost_connection >= link.epoch;  // between the others' answers
      const Duration delay = internal::start_delay_of(context_.options, i);
      if (!is_lost && delay == Duration::zero()) {
        make_ready(i, link);
        continue;
      }
      entry(i).link = link;
      entry(i).needs_recovery = true;
      if (!is_lost) {
        std::ostringstream text;
        text << "it starts " << seconds_of(delay)
             << " s after the coordinator, as CoordinatorOptions::start_delay says";
        entry(i).refusal = text.str();
        entry(i).starts_at = Deadline::after(delay).time();  // also for the longest delay
      }
      start_recovery(i);
    }
  }
  events_.flush();
  if (context_.options.heartbeat > Duration::zero())
    watcher_ = start_thread("to watch the workers", [this] { watch(); });
}

void WorkerPool::stop() noexcept {
  std::vector<std::thread> recoveries;
  std::vector<rpc::Connection> links;
  {
    const RuntimeLock lock(context_);
    for (std::uint32_t i = 0; i < size(); ++i) {
      if (entry(i).recovery.joinable()) recoveries.push_back(std::move(entry(i).recovery));
      links.push_back(entry(i).link.connection);
      // Also a connection whose worker is being set up.
      links.push_back(context_.connection.worker(i).connection);
    }
  }
  for (const rpc::Connection& link : links) {
    if (link.control) link.control->cancel();
    if (link.data) link.data->leave();
  }
  context_.changed.notify_all();
  context_.stopped.notify_all();
  for (std::thread& recovery : recoveries) recovery.join();
  if (watcher_.joinable()) watcher_.join();
}

void WorkerPool::set_all_away() {
  for (Entry& one : entries_) one.is_ready = false;
}

std::vector<std::pair<std::uint32_t, WorkerPool::Link>> WorkerPool::ready_links() const {
  std::vector<std::pair<std::uint32_t, Link>> links;
  for (std::uint32_t i = 0; i < size(); ++i)
    if (entry(i).is_ready) links.emplace_back(i, entry(i).link);
  return links;
}

std::optional<std::pair<std::uint32_t, WorkerPool::Link>> WorkerPool::ready_worker(
    const std::vector<std::uint64_t>& passed, Deadline deadline) {
  const RuntimeLock lock(context_);
  std::optional<std::pair<std::uint32_t, Link>> found;
  context_.wait(context_.changed, deadline, [&]() COHORT_REQUIRES(runtime_lock) {
    for (std::uint32_t i = 0; i < size() && !found; ++i) {
      if (entry(i).is_ready && entry(i).link.epoch > passed.at(i)) found.emplace(i, entry(i).link);
    }
    return found || context_.is_over();
  });
  return found;
}

std::string WorkerPool::absence_of(std::uint32_t worker) const {
  const Entry& one = entry(worker);
  if (one.is_ready) return "";
  return one.refusal.empty() ? "away" : "away: " + one.refusal;
}

std::vector<WorkerHealth> WorkerPool::health() const {
  std::vector<WorkerHealth> workers;
  for (const Entry& one : entries_) {
    workers.push_back(
        {.is_ready = one.is_ready, .closures = one.closures, .times_lost = one.times_lost});
  }
  return workers;
}

void WorkerPool::on_lost(std::uint32_t worker, std::uint64_t connection, const Error& reason) {
  if (context_.is_over() || context_.end_if_replaced(reason)) return;
  {
    const RuntimeLock lock(context_);
    Entry& lost = entry(worker);
    lost.lost_connection = std::max(lost.lost_connection, connection);
    const bool is_broken =
        reason.code() == ErrorCode::data_loss && reason.cause() == ErrorCause::peer_lost;
    if (is_broken) ++context_.totals.broken_frames;
    if (!is_current(worker, connection)) return;
    note_loss(worker, reason);
    events_.worker_lost(worker, Error(reason).at("worker:" + std::to_string(worker)));
  }
  events_.flush();
}

// In the log, and for `cohort status`.
void WorkerPool::note_loss(std::uint32_t worker, const Error& reason) {
  const std::string name = "worker:" + std::to_string(worker);
  const std::string text = reason.message() + events_.consequence_of_loss(worker);
  context_.errors.note(Error(reason.code(), text, reason.cause()).at(name));
  log_warn("lost ", name, ": ", text);
  entry(worker).is_ready = false;
  if (std::any_of(entries_.begin(), entries_.end(), [](const Entry& one) { return one.is_ready; }))
    return;
  log_warn("no worker is left: what is scheduled waits until one returns, and calls wait for it, ",
           seconds_of(context_.data_timeout), " s at most; start the workers again");
}

// A worker that is stopped, or whose host is, keeps its connection. So does one whose data channel
// leads through a firewall or proxy that drops its bytes, though the worker answers control calls.
// All are asked at once, so that any number of them is noticed within two heartbeats. Parameter
// servers that do not answer are only logged. Runs on a thread of its own.
void WorkerPool::watch() {
  std::map<std::uint32_t, internal::SilenceCount> silences;
  std::map<std::uint32_t, internal::SilenceCount> channel_silences;
  internal::PsSilence ps_silence(context_.connection.num_ps(), context_.options.heartbeat);
  const std::string consequence = consequence_of_silence(context_);
  while (true) {
    {
      const RuntimeLock lock(context_);
      context_.wait(context_.stopped,
                    Deadline::after(context_.options.heartbeat / kPausesPerHeartbeat),
                    [this] { return context_.is_over(); });
    }
    if (context_.is_over()) return;
    {
      const RuntimeLock lock(context_);
      for (std::uint32_t i = 0; i < size(); ++i)
        if (entry(i).needs_recovery) start_recovery(i);
    }
    std::vector<HealthCall> calls;
    try {
      for (const std::string& line : ps_silence.look(context_.connection.servers()->last_channels(),
                                                     Clock::system().now(), consequence))
        log_warn(line);
      calls = ask_workers();
    } catch (...) {  // of too little memory
      log_error("asking the tasks for their health failed: ", current_error().what());
      continue;
    }
    for (std::uint32_t i = 0; i < calls.size(); ++i) {
      const HealthCall& call = calls[i];
      if (silences[i].add(call.connection, call.is_silent))
        give_up_silent(i, call.connection, "it does not answer");
      if (channel_silences[i].add(call.connection, call.is_channel_silent)) {
        give_up_silent(i, call.connection,
                       "it answers control calls, but nothing comes over the connection for "
                       "tensors; see what a proxy or firewall between the hosts does to it");
      }
    }
  }
}

void WorkerPool::give_up_silent(std::uint32_t worker, std::uint64_t connection,
                                const std::string& what) {
  std::shared_ptr<rpc::Requester> channel;
  {
    const RuntimeLock lock(context_);
    if (!is_current(worker, connection)) return;
    channel = entry(worker).link.connection.data;
  }
  on_lost(worker, connection,
          Error(ErrorCode::unavailable,
                "[coordinator.heartbeat] expected a sign of life from " + channel->peer() +
                    " within two heartbeats, got none: " + what,
                ErrorCause::peer_lost));
  channel->close();
}

// A worker is silent if it neither answers nor refuses; one that is away or is shutting down is not
// silent. The calls are in the order of the workers.
std::vector<WorkerPool::HealthCall> WorkerPool::ask_workers() {
  std::vector<std::shared_ptr<rpc::ControlClient>> asked;
  std::vector<std::shared_ptr<rpc::Requester>> channels;
  std::vector<HealthCall> calls;
  {
    const RuntimeLock lock(context_);
    for (const Entry& one : entries_) {
      asked.push_back(one.is_ready ? one.link.connection.control : nullptr);
      channels.push_back(one.is_ready ? one.link.connection.data : nullptr);
      calls.push_back({.connection = one.is_ready ? one.link.epoch : 0});
    }
  }
  const Deadline deadline = Deadline::after(context_.options.heartbeat * 3 / 5);
  internal::ChannelPings pings(std::move(channels));
  const std::vector<std::optional<Error>> errors = rpc::health_of_all(asked, deadline);
  const std::vector<bool> silent_channels = pings.silent_at(deadline);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    calls[i].is_silent = errors[i] && errors[i]->code() == ErrorCode::deadline_exceeded;
    calls[i].is_channel_silent = silent_channels[i];
  }
  return calls;
}

}  // namespace cohort::coordinator
