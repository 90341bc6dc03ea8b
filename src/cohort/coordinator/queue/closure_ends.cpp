// SPDX-License-Identifier: Apache-2.0
// Handles the workers' reports of closures, and workers that are lost or ready.
#include <utility>

#include "cohort/coordinator/queue/closure_scheduler.h"

namespace cohort::coordinator {
namespace {

std::string name_of_worker(std::uint32_t worker) { return "worker:" + std::to_string(worker); }

// The error of a report that no correct worker makes.
Error impossible_report(const std::string& worker, const std::string& expected) {
  return Error(ErrorCode::data_loss, "[coordinator.receive] expected " + expected +
                                         "; see whether the worker's memory is sound")
      .at(worker);
}

Error never_sent(const std::string& worker, ClosureId closure) {
  return impossible_report(worker, "reports of closures that were sent to " + worker +
                                       ", got one of closure " + std::to_string(closure));
}

Error no_epoch(const std::string& worker, ClosureId closure) {
  return impossible_report(worker, "the end of the data only for steps of epochs, got it from " +
                                       worker + " for closure " + std::to_string(closure) +
                                       ", which is not such a step");
}

Error lost_updates(const std::string& worker, const rpc::ClosureEnd& end) {
  return Error(ErrorCode::data_loss,
               "[coordinator.receive] expected all updates of closure " +
                   std::to_string(end.closure_id) +
                   " to be applied, since it ran for the first time, got " +
                   std::to_string(end.pushes_dropped) +
                   " messages that a parameter server dropped as late; updates are "
                   "missing: start again from saved values, and see whether the memory of " +
                   worker + " and of the parameter servers is sound",
               ErrorCause::application)
      .at(worker);
}

// Keeps the reported values, and sets how the closure ended. Returns an error if the report is
// impossible.
std::optional<Error> note_status(PendingClosure& pending, rpc::ClosureEnd& end, Ended& ended) {
  switch (end.status) {
    case rpc::ClosureEnd::Status::ok:
      pending.reported = std::move(end.tensors);
      pending.in_epoch.rows = end.rows;
      ended.kind = Ended::Kind::ok;
      break;
    case rpc::ClosureEnd::Status::failed:
      ended.kind = Ended::Kind::failed;
      break;
    case rpc::ClosureEnd::Status::cancelled:
      --pending.runs;  // it was cancelled before it ran
      ended.kind = Ended::Kind::cancelled;
      break;
    case rpc::ClosureEnd::Status::needs_program:
      pending.reported = std::move(end.tensors);
      pending.waits_for_program = true;
      --pending.runs;
      ended.kind = Ended::Kind::needs_program;
      break;
    case rpc::ClosureEnd::Status::end_of_data:
      if (!pending.in_epoch.run) return no_epoch(name_of_worker(ended.worker), end.closure_id);
      pending.in_epoch.is_end = true;
      ended.kind = Ended::Kind::ok;
      break;
  }
  return std::nullopt;
}

}  // namespace

void ClosureScheduler::worker_ready(std::uint32_t worker) {
  sender_.reset(worker);
  Actions actions;
  queue_.set_in_flight(worker, sender_.window_size(worker), actions);
  queue_.worker_ready(worker, actions);
  carry_out(std::move(actions));
}

void ClosureScheduler::worker_lost(std::uint32_t worker, const Error& reason) {
  drop_unsent(worker);
  Actions actions;
  queue_.worker_lost(worker, reason, actions);
  carry_out(std::move(actions));
}

void ClosureScheduler::on_completed(std::uint32_t worker, std::uint64_t connection,
                                    rpc::CompletedBatch batch) {
  for (const rpc::ClosureEnd& end : batch.ends) {
    if (end.error && context_.end_if_replaced(*end.error)) return;
  }
  std::optional<Error> wrong;
  {
    const RuntimeLock lock(context_);
    if (!pool_.is_current(worker, connection)) {
      context_.totals.duplicate_reports_dropped += batch.ends.size();
      return;
    }
    const TimePoint now = Clock::system().now();
    Actions actions = take_actions();
    sender_.note_ends(worker, batch.ends.size(), now);
    queue_.set_in_flight(worker, sender_.window_size(worker), actions);
    for (rpc::ClosureEnd& end : batch.ends) {
      wrong = on_end(worker, std::move(end), now, actions);
      if (wrong) break;
    }
    if (wrong) ++context_.totals.protocol_errors;
    carry_out(std::move(actions));
  }
  flush();
  if (wrong) throw Error(*wrong);  // closes the channel and logs the error
}

std::optional<Error> ClosureScheduler::on_end(std::uint32_t worker, rpc::ClosureEnd end,
                                              TimePoint now, Actions& actions) {
  context_.totals.pulled_bytes += end.pulled_bytes;
  context_.totals.pushed_bytes += end.pushed_bytes;
  context_.totals.pushes_dropped += end.pushes_dropped;
  // Also if the closure is retried, but not if the coordinator has cancelled it.
  if (end.error && end.error->cause() != ErrorCause::cancelled_by_job)
    context_.errors.note(*end.error);
  if (!sender_.may_have_sent(worker, end.closure_id))
    return never_sent(name_of_worker(worker), end.closure_id);
  // An earlier end in this report may have made the queue take back the worker's closures.
  if (!queue_.is_running(end.closure_id, worker)) {
    ++context_.totals.duplicate_reports_dropped;
    return std::nullopt;
  }
  PendingClosure* const pending = pending_.find(end.closure_id);
  COHORT_ASSERT(pending != nullptr);
  if (const auto& epoch = pending->in_epoch.run) epoch->files->note(worker, std::move(end.files));
  Ended ended{.closure = end.closure_id, .worker = worker, .error = end.error};
  if (end.pushes_dropped > 0 && !pending->is_retried) {
    // Not retried, since the updates of another attempt would be dropped too.
    ended.kind = Ended::Kind::failed;
    ended.error = lost_updates(name_of_worker(worker), end);
    queue_.ended(ended, now, actions);
    return ended.error;
  }
  if (std::optional<Error> wrong = note_status(*pending, end, ended)) return wrong;
  queue_.ended(ended, now, actions);
  return std::nullopt;
}

}  // namespace cohort::coordinator
