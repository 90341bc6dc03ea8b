// SPDX-License-Identifier: Apache-2.0
// The calls of a task when a connection, a server or the job is lost.
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "cohort/core/log.h"
#include "cohort/core/thread_value.h"
#include "cohort/rpc/task_errors.h"
#include "cohort/v1/job.h"

namespace cohort::detail::v1 {
namespace {

constexpr auto kPauseAfterLoss = std::chrono::milliseconds(50);

// This thread restores the servers, and its calls must not wait for that.
thread_local bool is_restoring_here = false;

std::string seconds_text(Duration duration) {
  std::string text = std::to_string(std::chrono::duration<double>(duration).count());
  return text.substr(0, text.find('.') + 2) + " s";
}

}  // namespace

void Job::call(const std::function<void()>& body) {
  open();
  if (is_restoring_here) return body();
  const Deadline deadline = Deadline::after(options_.cluster.data_timeout);
  while (true) {
    const std::uint64_t job = wait_for_restore(deadline);
    try {
      body();
      if (links_.job() != job) continue;
      job_of_call_ = job;
      return;
    } catch (const Error& error) {
      if (links_.job() != job) continue;
      if (is_job_lost(error)) {
        follow(job, deadline, error);
      } else if (!is_connection_lost(error) || deadline.has_expired()) {
        throw;
      } else {
        if (!pause(std::min<Duration>(kPauseAfterLoss, deadline.remaining()))) throw;
      }
    }
  }
}

void Job::save(const std::function<void()>& body) {
  const std::uint64_t job = job_of_call_;
  call([&] {
    COHORT_CHECK(is_restoring_here || links_.job() == job, ErrorCode::aborted,
                 "[v1.save] expected to save the values of the step before, got values that ",
                 role_.chief(),
                 " has restored since, because a parameter server was lost; save again after the "
                 "next step");
    body();
  });
}

// The job is told under the lock, since another one begins only after is_restoring is set.
std::uint64_t Job::wait_for_restore(Deadline deadline) const {
  const Lock lock(watch_->mutex);
  const auto is_over = [&]() COHORT_REQUIRES(watch_->mutex) {
    return watch_->is_ended || watch_->failure || !watch_->is_restoring;
  };
  const bool is_done = watch_->changed.wait(watch_->mutex, deadline, is_over);
  if (watch_->failure) throw Error(*watch_->failure);
  COHORT_CHECK(
      !watch_->is_ended, ErrorCode::failed_precondition,
      "[v1.call] expected the strategy of the variables to live, got a call after its end; "
      "keep it as long as its variables");
  COHORT_CHECK(is_done, ErrorCode::unavailable,
               "[v1.wait] expected all parameter servers to be restored within ",
               seconds_text(options_.cluster.data_timeout), ", got none from ", lost_servers(),
               "; start them again, or raise ClusterOptions::data_timeout");
  return links_.job();
}

void Job::set_restoring(bool is_restoring) const {
  const Lock lock(watch_->mutex);
  watch_->is_restoring = is_restoring;
  watch_->changed.notify_all();
}

void Job::follow(std::uint64_t job, Deadline deadline, const Error& loss) {
  if (role_.is_chief()) return follow_as_chief(job, deadline, loss);
  const Lock lock(opening_);
  if (links_.job() != job) return;  // another thread was faster
  log_warn("[v1.wait] ", role_.name(), " waits for ", role_.chief(),
           " to restore the variables: ", loss.message());
  // Other threads must not use the next job before it has its values.
  set_restoring(true);
  const auto end = c10::make_scope_exit([this] { set_restoring(false); });
  if (join_ready_job(job, deadline)) return;
  throw Error(ErrorCode::unavailable,
              "[v1.wait] expected " + role_.chief() + " to restore the variables within " +
                  seconds_text(options_.cluster.data_timeout) + " after a loss (" + loss.message() +
                  "), got none; start " + role_.chief() + " and the parameter servers again")
      .at(loss.origin());
}

void Job::follow_as_chief(std::uint64_t job, Deadline deadline, const Error& loss) {
  const Lock lock(watch_->mutex);
  const bool has_moved = links_.job() != job || watch_->is_restoring;
  if (!has_moved && rpc::is_replaced(loss)) throw Error(loss);  // another chief has begun a job
  if (!has_moved) {
    watch_->has_lost_connection = true;
    watch_->changed.notify_all();
  }
  watch_->changed.wait(watch_->mutex, deadline, [&]() COHORT_REQUIRES(watch_->mutex) {
    return watch_->is_ended || watch_->failure || links_.job() != job;
  });
  if (watch_->is_ended || deadline.has_expired()) throw Error(loss);
}

// The thread of the chief. A closed connection may mean a restarted server, whose variables are
// lost; also the chief that trains no more must find that, as others may still train.
void Job::watch_servers() {
  while (true) {
    {
      const Lock lock(watch_->mutex);
      watch_->changed.wait(watch_->mutex, Deadline(), [&]() COHORT_REQUIRES(watch_->mutex) {
        return watch_->is_ended || watch_->has_lost_connection;
      });
      if (watch_->is_ended) return;
      watch_->has_lost_connection = false;
    }
    {
      const Lock lock(opening_);  // open() has returned
    }
    if (has_lost_server()) restore_until_it_works();
  }
}

// Asks a server that does not answer again and again: it may be about to start.
bool Job::has_lost_server() const {
  for (rpc::MemberId server = 0; server < links_.num_servers();) {
    try {
      links_.servers()->get(server);
      ++server;
    } catch (const Error& error) {
      if (is_job_lost(error)) return !rpc::is_replaced(error);
      if (!is_connection_lost(error)) return false;
      if (!pause(kPauseAfterLoss)) return false;
    }
  }
  return false;
}

std::string Job::lost_servers() const {
  std::string names;
  for (rpc::MemberId server = 0; server < links_.num_servers(); ++server) {
    const rpc::Connection last = links_.servers()->last(server);
    if (last.data && last.data->is_open()) continue;
    names += (names.empty() ? "" : ", ") + links_.servers()->name_of(server);
  }
  return names.empty() ? "them" : names;
}

void Job::restore_until_it_works() {
  const internal::ScopedValue<bool> restoring(is_restoring_here, true);
  const std::string lost = lost_servers();
  set_restoring(true);
  std::optional<Error> failure;
  while (true) {
    try {
      restore_all(lost);
      break;
    } catch (...) {
      const Error error = current_error();
      const bool may_pass = is_job_lost(error) || is_connection_lost(error) ||
                            error.code() == ErrorCode::unavailable ||
                            error.code() == ErrorCode::deadline_exceeded;
      if (!may_pass) failure = Error(error).during("restoring the parameter servers");
      if (!may_pass || !pause(kPauseAfterLoss)) break;
      log_warn("[v1.restore] tries again: ", error.message());
    }
  }
  const Lock lock(watch_->mutex);
  watch_->is_restoring = false;
  watch_->failure = std::move(failure);
  watch_->changed.notify_all();
}

// Pushes of the job before are refused from begin() on. Others find the variables again when all of
// them have their values.
void Job::restore_all(const std::string& lost) {
  const std::int64_t before = last_step_;
  const bool others_train = lets_others_train_;
  log_warn("[v1.restore] ", lost, " has lost its variables: pushes of all workers wait");
  links_.begin(Deadline::after(options_.cluster.timeout));
  // The program of a chief that has just joined finds nothing newer any more: it restores as when
  // the job begins, and lets others train afterwards.
  if (!others_train) has_joined_ = false;
  // An earlier start of the chief has made these, and this one will make them again.
  for (const KnownVariable& each : known_.all())
    if (!each.initial.defined()) known_.forget(each.entry.name);
  const std::vector<KnownVariable> known = known_.all();
  std::vector<rpc::SharedVariable> entries;
  for (const KnownVariable& each : known) entries.push_back(each.entry);
  create(entries);
  upload(known);
  RestoreJob restore;
  {
    const Lock lock(restore_mutex_);
    restore = restore_;
    has_missed_restore_ = !restore && !others_train;
  }
  const std::optional<std::int64_t> step = restore ? restore() : std::nullopt;
  if (others_train) {
    say_fallback(
        step ? "values of the last checkpoint" : "initial values, as there is no checkpoint",
        before, step.value_or(0));
  } else {
    begins_after_loss_ = true;
  }
  links_.announce({.variables = entries, .is_ready = others_train});
}

void Job::say_fallback(const std::string& values, std::int64_t from, std::int64_t to) {
  const auto named = [](std::int64_t step) {
    return step < 0 ? std::string("an unknown step") : "step " + std::to_string(step);
  };
  log_warn("[v1.restore] all parameter servers have the ", values, ": training falls back from ",
           named(from), " to ", named(to));
}

bool Job::keeps_newer_values() const {
  if (!role_.is_chief()) return true;
  if (is_restoring_here) return false;
  return has_joined_ && !has_run_;
}

void Job::restore_with(RestoreJob restore) {
  {
    const Lock lock(restore_mutex_);
    restore_ = restore;
    if (!restore || !std::exchange(has_missed_restore_, false)) return;
  }
  restore();
}

}  // namespace cohort::detail::v1
