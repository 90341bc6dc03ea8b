// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/session/current_session.h"

#include <algorithm>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/rpc/connection.h"

namespace cohort::server {

std::shared_ptr<Session> CurrentSession::take(const rpc::HandshakeRequest& request,
                                              const rpc::Caller& caller, ChannelTable& channels) {
  std::shared_ptr<Session> session;
  while (!session)
    session = take_over(request, check_only_coordinator(request, channels), caller, channels);
  return session;
}

// The session of the caller; null if another start has replaced the expected one meanwhile.
std::shared_ptr<Session> CurrentSession::take_over(const rpc::HandshakeRequest& request,
                                                   const std::shared_ptr<Session>& expected,
                                                   const rpc::Caller& caller,
                                                   ChannelTable& channels) {
  std::shared_ptr<Session> old;
  std::shared_ptr<Session> made;
  {
    const Lock lock(mutex_);
    COHORT_CHECK(!is_refusing_, ErrorCode::unavailable, "[server.handshake] ", options_.self.task,
                 " ends");
    if (session_ != expected) return nullptr;
    if (session_ && session_->coordinator_incarnation() == request.coordinator_incarnation)
      return session_;
    const std::uint64_t above_old = session_ ? session_->start_order() + 1 : 0;
    SessionOptions options = options_;
    options.coordinator = request.caller.task;
    options.coordinator_incarnation = request.coordinator_incarnation;
    options.start_order = std::max(request.start_order, above_old);
    options.is_shared = request.is_shared;
    if (request.data_timeout > Duration::zero()) options.data_timeout = request.data_timeout;
    options.payload_checksums = rpc::agreed(request.payload_checksums, options_.payload_checksums);
    made = std::make_shared<Session>(std::move(options));
    if (session_) replaced_.insert(session_->coordinator_incarnation());
    old = std::exchange(session_, made);
  }
  log_info("coordinator ", request.caller.task, " at ", caller.address, " took over (job ",
           options_.self.job_id, ")");
  if (request.is_returning && !old) say_restarted(request.coordinator_incarnation);
  if (!old) return made;
  old->replace();
  // The error is sent over the old coordinator's channels, and those of its workers. Otherwise a
  // coordinator that was stopped would only see that a task is lost.
  channels.close_of(old->coordinator_incarnation(), rpc::replaced_error(options_.self.task));
  return made;
}

// A caller of another job gets no information about this one.
void CurrentSession::check_job(const std::string& job_id) const {
  COHORT_CHECK(job_id == options_.self.job_id, ErrorCode::failed_precondition,
               "[server.handshake] expected a caller of the job of this task, got one of ",
               rpc::text_of_job(job_id.substr(0, kForeignNameMax)),
               "; give every task the same cluster in TF_CONFIG, or the same job id");
}

void CurrentSession::check_caller(const rpc::HandshakeRequest& request) const {
  check_job(request.caller.job_id);
  COHORT_CHECK(request.expected_task == options_.self.task, ErrorCode::failed_precondition,
               "[server.handshake] this is ", options_.self.task, ", but ", request.caller.task,
               " expected ", request.expected_task,
               " at this address; give every task the same cluster in TF_CONFIG");
  const std::string problem = rpc::disagreement(options_.self, request.caller);
  COHORT_CHECK(problem.empty(), ErrorCode::failed_precondition, "[server.handshake] ",
               options_.self.task, " refuses ", request.caller.task, ": ", problem);
}

// Refuses a second coordinator while the first one lives, because each would train without the
// variables of the other. Returns the session that may be replaced.
std::shared_ptr<Session> CurrentSession::check_only_coordinator(
    const rpc::HandshakeRequest& request, ChannelTable& channels) const {
  std::shared_ptr<Session> current;
  {
    const Lock lock(mutex_);
    // It may come again although it never got a connection, and so does not say that it returns.
    if (replaced_.contains(request.coordinator_incarnation))
      throw rpc::replaced_error(options_.self.task);
    current = session_;
  }
  if (!current || current->coordinator_incarnation() == request.coordinator_incarnation)
    return current;
  // The chief of a shared job begins another one after the loss of a server. Its workers, which
  // still train with the job before, follow it.
  if (request.is_shared && current->is_shared()) return current;
  const bool is_later = request.start_order > current->start_order();
  if (request.is_returning) {
    // After a restart of this task, an earlier start may have reconnected before a later one.
    if (is_later) return current;
    throw rpc::replaced_error(options_.self.task);
  }
  // Their order decides between two starts that reach the cluster at once. Whether the one that was
  // faster answers must not: at another task the other one was faster, and each would end.
  const bool is_starting = !current->has_met_coordinator();
  if (is_later && (is_starting || request.has_first_task)) return current;
  using Presence = ChannelTable::Presence;
  const Deadline sign_of_life = Deadline::after(kSignOfLife);
  // A later start that has no channel yet has not ended.
  if (is_starting) channels.await_coordinator(*current, sign_of_life);
  const Presence presence =
      channels.presence(current->coordinator(), current->coordinator_incarnation(),
                        Deadline::after(kFarewell), sign_of_life);
  if (presence == Presence::alive && (is_starting || request.has_first_task))
    throw rpc::replaced_error(options_.self.task);
  // `aborted`, because nothing is wrong with the second one, and it may try again.
  COHORT_CHECK(presence != Presence::alive, ErrorCode::aborted, "[server.handshake] ",
               options_.self.task, " expected one coordinator, got a second start of ",
               request.caller.task, " while ", current->coordinator(),
               " is connected and answers; end the first and start this one again, which then has "
               "the place at once (a first one that does not answer loses it after ",
               kSignOfLife / std::chrono::seconds(1), " s), or give this one a cluster of its own");
  if (presence == Presence::gone) return current;
  log_warn(current->coordinator(), " does not answer any more: its next start takes its place");
  return current;
}

std::shared_ptr<Session> CurrentSession::of(const rpc::Caller& caller) const {
  COHORT_CHECK(caller.coordinator_incarnation != 0, ErrorCode::failed_precondition,
               "[server.job] expected a caller that has shaken hands with ", options_.self.task,
               ", got one that has not; the handshake comes first");
  return of(caller.coordinator_incarnation);
}

// A start that is not known here may be the latest one, if this task was restarted after their
// handshake; so the error asks for a handshake, which compares the starts.
std::shared_ptr<Session> CurrentSession::of(std::uint64_t coordinator_incarnation) const {
  const Lock lock(mutex_);
  if (session_ && session_->coordinator_incarnation() == coordinator_incarnation) return session_;
  if (replaced_.contains(coordinator_incarnation)) throw rpc::replaced_error(options_.self.task);
  throw Error(ErrorCode::failed_precondition,
              "[server.job] expected a coordinator that " + options_.self.task +
                  " has met, got another one; perhaps " + options_.self.task +
                  " was restarted since they met: the handshake comes first",
              ErrorCause::handle_lost);
}

std::shared_ptr<Session> CurrentSession::greet(const rpc::Hello& hello) const {
  check_job(hello.job_id);
  // This task was restarted between the handshake and this greeting, so the caller must do the
  // handshake again.
  if (hello.server_incarnation != 0 && hello.server_incarnation != options_.self.incarnation) {
    say_restarted(hello.coordinator_incarnation);
    throw Error(ErrorCode::failed_precondition,
                "[server.greet] expected a greeting to this start of " + options_.self.task +
                    ", got one of " + hello.task + " to an earlier one: " + options_.self.task +
                    " was restarted since; shake hands again",
                ErrorCause::peer_lost);
  }
  try {
    return of(hello.coordinator_incarnation);
  } catch (const Error& error) {
    // No coordinator has come here yet, but the caller knows one.
    if (error.code() == ErrorCode::failed_precondition && get() == nullptr)
      say_restarted(hello.coordinator_incarnation);
    throw;
  }
}

// The coordinator gets an error for each step, but this task knows the reason. A worker has nothing
// that the coordinator does not send again.
void CurrentSession::say_restarted(std::uint64_t coordinator_incarnation) const {
  if (!options_.self.task.starts_with("ps:")) return;
  {
    const Lock lock(mutex_);
    if (!told_of_restart_.insert(coordinator_incarnation).second) return;
  }
  log_warn(
      options_.self.task,
      " was restarted while a coordinator trained: the variables that it had are lost, and "
      "steps that use them fail; start the coordinator again, which makes them again, or loads "
      "what it has saved");
}

std::shared_ptr<Session> CurrentSession::get() const {
  const Lock lock(mutex_);
  return session_;
}

std::uint64_t CurrentSession::shared_job() const {
  const std::shared_ptr<Session> session = get();
  return session && session->is_shared() ? session->coordinator_incarnation() : 0;
}

std::shared_ptr<Session> CurrentSession::leave() {
  const Lock lock(mutex_);
  is_refusing_ = true;
  return std::move(session_);
}

}  // namespace cohort::server
