// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/formation/formation.h"

#include <algorithm>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/log.h"

namespace cohort::collective::formation {

std::optional<Reply> Formation::answer(const Request& request, std::uint64_t connection) {
  if (const std::optional<Error> error = disagreement(request.from, self_)) {
    note_refused(request);
    return Reply{.kind = ReplyKind::refused,
                 .incarnation = self_.self.incarnation,
                 .code = error->code(),
                 .text = error->message()};
  }
  const auto count = static_cast<int>(names_.size());
  const int from = request.from.self.task;
  if (request.to != self_.self.task || from < 0 || from >= count || from == request.to) {
    const std::string expected = request.to >= 0 && request.to < count
                                     ? names_[static_cast<std::size_t>(request.to)]
                                     : "another task";
    return Reply{.kind = ReplyKind::refused,
                 .code = ErrorCode::failed_precondition,
                 .text = "[collective.form] expected " + expected + ", got " +
                         names_[static_cast<std::size_t>(self_.self.task)] +
                         "; give each process its own task index"};
  }
  if (request.kind == RequestKind::link) return std::nullopt;
  const Lock lock(mutex_);
  const bool is_task = request.different >= 0 && request.different < count;
  if (request.kind == RequestKind::differs && is_task && request.different != self_.self.task)
    mistake_ = {request.different, Error(ErrorCode::failed_precondition, request.difference), true};
  if (request.kind == RequestKind::left_out)
    left_out_of_ = std::max(left_out_of_, request.left_out_of);
  Reply reply = request.kind == RequestKind::join ? answer_join(request, connection)
                                                  : Reply{.kind = ReplyKind::forming};
  if (role_ == Role::none && reply.kind == ReplyKind::forming) reply.kind = ReplyKind::not_forming;
  reply.incarnation = self_.self.incarnation;
  reply.number = entered_;
  reply.last = last_.number;
  return reply;
}

// The other process ends. This one must not wait for it, or wonder why it does not come back.
void Formation::note_refused(const Request& request) {
  constexpr std::size_t kWarningsMax = 16;  // strangers could fill the log
  const Member& from = request.from.self;
  const bool is_named = from.task >= 0 && from.task < static_cast<int>(names_.size());
  std::optional<Error> error = disagreement(self_, request.from);
  // With another list, the address of this process may be that of another task.
  const bool is_asked =
      request.to == self_.self.task || request.from.tasks_hash != self_.tasks_hash;
  if (!is_asked || !is_named || !error) return;
  const std::string& name = names_[static_cast<std::size_t>(from.task)];
  const Lock lock(mutex_);
  if (refused_.size() >= kWarningsMax || !refused_.insert(from.incarnation).second) return;
  log_warn("[collective.form] refused a process that takes part as ", name, ": ", error->message());
  const bool is_told =
      request.kind == RequestKind::differs && request.from.tasks_hash == self_.tasks_hash;
  if (is_mistake_of_one_job(self_, request.from)) mistake_ = {from.task, *error, is_told};
}

std::uint64_t Formation::left_out_of() const {
  const Lock lock(mutex_);
  return left_out_of_;
}

std::optional<Formation::Mistake> Formation::take_mistake() {
  const Lock lock(mutex_);
  return std::exchange(mistake_, std::nullopt);
}

Reply Formation::answer_join(const Request& request, std::uint64_t connection) {
  const Member& member = request.from.self;
  const bool is_committed = roster_ && roster_->phase() == Roster::Phase::committed;
  if (is_committed && roster_->is_proposed(member) &&
      request.join.accepted == roster_->proposal().number) {
    roster_->note_told(member);
    return {.kind = ReplyKind::committed};
  }
  if (role_ == Role::none) return {.kind = ReplyKind::not_forming};
  if (role_ != Role::leading || is_committed) return {.kind = ReplyKind::try_again};
  roster_->join(member, request.join, connection, Clock::system().now());
  Reply reply{.kind = ReplyKind::waiting, .lack = roster_->lack(member.task)};
  if (roster_->is_proposed(member)) {
    reply.kind = ReplyKind::prepare;
    reply.proposal = roster_->proposal();
  }
  return reply;
}

void Formation::closed(std::uint64_t connection) {
  const Lock lock(mutex_);
  if (roster_) roster_->leave(connection);
}

void Formation::look() {
  const Lock lock(mutex_);
  role_ = Role::joining;
  roster_.reset();
}

void Formation::lead(const Join& own) {
  const Lock lock(mutex_);
  role_ = Role::leading;
  roster_.emplace(static_cast<int>(names_.size()), self_.self, own, Clock::system().now(), rules_);
}

void Formation::enter(std::uint64_t number) {
  const Lock lock(mutex_);
  role_ = Role::none;
  entered_ = number;
}

void Formation::keep(PastGroup group) {
  const Lock lock(mutex_);
  last_ = std::move(group);
}

void Formation::stop() {
  const Lock lock(mutex_);
  role_ = Role::none;
}

PastGroup Formation::last() const {
  const Lock lock(mutex_);
  return last_;
}

Formation::Progress Formation::update(const Absent& absent, TimePoint now) {
  const Lock lock(mutex_);
  COHORT_ASSERT(role_ == Role::leading && roster_);
  roster_->update(absent, now);
  Progress progress{.phase = roster_->phase(),
                    .lack = roster_->lack(self_.self.task),
                    .proposal = roster_->proposal(),
                    .have_all_been_told = roster_->have_all_been_told()};
  for (int task = 0; task < static_cast<int>(names_.size()); ++task) {
    if (!roster_->has_joined(task)) progress.absent.push_back(task);
  }
  return progress;
}

}  // namespace cohort::collective::formation
