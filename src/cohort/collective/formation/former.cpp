// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/formation/former.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "cohort/collective/formation/lack.h"
#include "cohort/core/log.h"
#include "cohort/net/waker.h"

namespace cohort::collective::formation {
namespace {

using State = Conversation::State;

// A process that has stopped accepts connections by its kernel, but does not answer.
constexpr auto kAnswerTimeout = std::chrono::seconds(1);
// A leader is busy with all that join, and asked again only after a timeout: so it has longer.
constexpr auto kLeaderTimeout = std::chrono::milliseconds(2500);
// More often than the time for which a leader waits for others that just arrive.
constexpr auto kAskEvery = std::chrono::milliseconds(100);
constexpr auto kJoinEvery = std::chrono::milliseconds(10);
constexpr auto kConfirmEvery = std::chrono::milliseconds(1);
constexpr auto kStep = std::chrono::milliseconds(10);
// Before the deadline.
constexpr auto kLastMoments = std::chrono::milliseconds(500);
constexpr auto kTellTimeout = std::chrono::seconds(1);

void rest(Deadline deadline) { ::poll(nullptr, 0, net::poll_milliseconds(deadline)); }

// Returns when the kernel has all questions, or after a time.
void send_all(std::vector<Conversation*> asked) {
  const Deadline deadline = Deadline::after(kTellTimeout);
  while (!asked.empty() && !deadline.has_expired()) {
    advance_all(asked, -1, Deadline(std::min(deadline.time(), Deadline::after(kStep).time())));
    std::erase_if(asked, [](const Conversation* one) { return one->has_sent(); });
  }
}

}  // namespace

Former::Former(const std::vector<WorkerTask>& tasks, const Identity& self, Formation& formation,
               Join join, Deadline deadline, Duration return_wait, std::set<int> silent,
               std::function<void()> settle)
    : tasks_(tasks),
      self_(self),
      formation_(formation),
      join_(std::move(join)),
      wait_(deadline.time() - started_),
      return_deadline_(Deadline::after(return_wait)),
      deadline_(deadline),
      silent_(std::move(silent)),
      settle_(std::move(settle)) {
  for (int task = 0; task < static_cast<int>(tasks.size()); ++task) {
    if (task != self.self.task) lack_.missing.push_back(task);
  }
}

Proposal Former::run() {
  while (true) {
    check_may_wait();
    formation_.look();
    const std::optional<int> leader = find_leader();
    log_debug("[collective.form] ", leader ? "joins task " + std::to_string(*leader) : "leads");
    std::optional<Proposal> formed = leader ? follow(*leader) : lead();
    if (formed) return std::move(*formed);
    // The process that was to lead does not, or no longer.
    rest(pause(kStep));
  }
}

bool Former::have_others_ended(const RosterRules& rules) {
  const PastGroup& last = join_.last;
  forget_answers();
  while (true) {
    std::vector<int> left;
    bool is_one_forming = false;
    for (std::size_t i = 0; i < last.members.size(); ++i) {
      const int task = last.members[i].task;
      if (task == self_.self.task || is_gone(last, i, absent_[task], rules)) continue;
      left.push_back(task);
      is_one_forming = is_one_forming || absent_[task].kind == AbsentTask::Kind::forming;
    }
    if (left.empty()) return true;
    if (is_one_forming || deadline_.has_expired()) return false;
    note_answers(left);
  }
}

Conversation& Former::with(int task) {
  return conversations_.try_emplace(task, tasks_[static_cast<std::size_t>(task)].address)
      .first->second;
}

Deadline Former::pause(Duration duration) const {
  return Deadline(std::min(deadline_.time(), Deadline::after(duration).time()));
}

Join Former::join_now() const {
  Join join = join_;
  join.remaining_ms =
      deadline_.is_infinite()
          ? -1
          : std::chrono::duration_cast<std::chrono::milliseconds>(deadline_.remaining()).count();
  return join;
}

Bytes Former::question(RequestKind kind, int to) const {
  Request request{.kind = kind, .from = self_, .to = to};
  if (kind == RequestKind::join) request.join = join_now();
  return encode(request);
}

void Former::forget_answers() {
  absent_.clear();
  for (const int task : silent_) absent_[task].was_silent = true;
}

AbsentTask Former::heard(int task, const Conversation& conversation) {
  if (conversation.state() == State::lost && conversation.is_silent()) silent_.insert(task);
  AbsentTask absent{.was_silent = silent_.contains(task)};
  if (conversation.state() != State::refused && conversation.state() != State::answered)
    return absent;
  absent.addresses = conversation.addresses();
  if (conversation.state() == State::refused) {
    absent.kind = AbsentTask::Kind::dead;
    return absent;
  }
  const Reply& reply = conversation.reply();
  absent.incarnation = reply.incarnation;
  join_.number_max = std::max(join_.number_max, reply.last);
  if (reply.kind == ReplyKind::refused) {
    // A group that trains does not end because of another program at the address of a lost worker.
    if (join_.last.number == 0) fail_because_of(task, {reply.code, reply.text});
    if (refusing_.insert(task).second)
      log_warn("[collective.form] ", names_of(tasks_, {task}),
               " refuses this process: ", reply.text);
    return absent;
  }
  const bool is_forming = reply.kind != ReplyKind::not_forming;
  if (is_forming) came_.insert(task);
  absent.kind = is_forming ? AbsentTask::Kind::forming : AbsentTask::Kind::idle;
  absent.number = reply.last;
  return absent;
}

void Former::note_answers(const std::vector<int>& tasks) {
  std::vector<Conversation*> asked;
  for (const int task : tasks) {
    Conversation& conversation = with(task);
    const TimePoint now = Clock::system().now();
    if (conversation.state() == State::pending) {
      if (conversation.has_waited(kAnswerTimeout, now) &&
          conversation.advance() == State::pending) {
        log_debug("[collective.form] no answer of task ", task, " in time");
        conversation.give_up("no answer in time");
        absent_[task] = heard(task, conversation);
      }
    } else if (conversation.state() == State::idle || now - conversation.asked_at() >= kAskEvery) {
      conversation.ask(question(RequestKind::probe, task));
    }
    asked.push_back(&conversation);
  }
  advance_all(asked, -1, pause(kStep));
  for (const int task : tasks) {
    const Conversation& conversation = with(task);
    if (conversation.state() != State::pending) absent_[task] = heard(task, conversation);
  }
}

bool Former::is_lower_forming() const {
  return std::any_of(absent_.begin(), absent_.end(), [&](const auto& one) {
    return one.first < self_.self.task && one.second.kind == AbsentTask::Kind::forming;
  });
}

// The lowest task that is forming a group, if it is lower than this one. Asks all lower ones once.
std::optional<int> Former::find_leader() {
  std::vector<int> open;
  for (int task = 0; task < self_.self.task; ++task) {
    with(task).ask(question(RequestKind::probe, task));
    open.push_back(task);
  }
  forget_answers();
  while (!open.empty() && !deadline_.has_expired()) {
    note_answers(open);
    const auto has_ended = [&](int task) { return with(task).state() != State::pending; };
    std::erase_if(open, has_ended);
    for (const auto& [task, state] : absent_) {
      const bool is_lowest = open.empty() || task < open.front();
      if (is_lowest && state.kind == AbsentTask::Kind::forming) return task;
    }
  }
  return std::nullopt;
}

bool Former::hears_that_it_was_left_out() {
  settle_();
  if (formation_.left_out_of() <= join_.number_max) return false;
  join_.number_max = formation_.left_out_of();
  return true;
}

std::optional<Proposal> Former::lead() {
  forget_answers();
  formation_.lead(join_now());
  while (true) {
    // After the others were asked: one that had ended by then had told before.
    if (hears_that_it_was_left_out()) return std::nullopt;
    Formation::Progress progress = formation_.update(absent_, Clock::system().now());
    note_proposed(progress.proposal);
    if (progress.phase == Roster::Phase::committed) {
      if (progress.proposal.members.size() == 1 && hears_that_it_was_left_out())
        return std::nullopt;
      tell_all();
      tell_left_out(progress.proposal);
      return std::move(progress.proposal);
    }
    note(std::move(progress.lack));
    check_may_wait();
    std::erase_if(absent_, [&](const auto& one) {
      return !one.second.was_silent && std::find(progress.absent.begin(), progress.absent.end(),
                                                 one.first) == progress.absent.end();
    });
    note_answers(progress.absent);
    // The processes that joined this one follow it there.
    if (progress.phase == Roster::Phase::gathering && is_lower_forming()) return std::nullopt;
  }
}

void Former::tell_all() {
  const Deadline deadline = Deadline::after(kTellTimeout);
  while (!formation_.update({}, Clock::system().now()).have_all_been_told &&
         !deadline.has_expired()) {
    rest(Deadline::after(kConfirmEvery));
  }
  if (deadline.has_expired()) log_debug("[collective.form] some members may not know the group");
}

void Former::tell_left_out(const Proposal& group) {
  std::vector<Conversation*> told;
  for (const Member& member : join_.last.members) {
    const bool is_in =
        std::any_of(group.members.begin(), group.members.end(),
                    [&](const ProposedMember& one) { return one.who.task == member.task; });
    if (is_in || member.task == self_.self.task) continue;
    Request request{.kind = RequestKind::left_out, .from = self_, .to = member.task};
    request.left_out_of = group.number;
    with(member.task).give_up("the group is formed");  // the last question may have no answer
    with(member.task).ask(encode(request));
    told.push_back(&with(member.task));
  }
  send_all(std::move(told));
}

std::optional<Proposal> Former::follow(int leader) {
  Conversation& conversation = with(leader);
  Proposal accepted;
  join_.accepted = 0;
  while (true) {
    check_may_wait();
    conversation.ask(question(RequestKind::join, leader));
    Conversation* const one = &conversation;
    while (conversation.state() == State::pending && !deadline_.has_expired() &&
           !conversation.has_waited(kLeaderTimeout, Clock::system().now()))
      advance_all({&one, 1}, -1, pause(kAskEvery));
    if (conversation.state() != State::answered) {
      if (conversation.state() == State::pending) conversation.give_up("no answer in time");
      heard(leader, conversation);
      log_debug("[collective.form] lost task ", leader, ", which leads");
      return std::nullopt;
    }
    const Reply& reply = conversation.reply();
    heard(leader, conversation);
    switch (reply.kind) {
      case ReplyKind::waiting:
        note(reply.lack);
        join_.accepted = 0;
        break;
      case ReplyKind::prepare:
        accepted = reply.proposal;
        note_accepted(accepted);
        break;
      case ReplyKind::committed:
        if (accepted.number != 0) return accepted;
        return std::nullopt;
      default:
        return std::nullopt;
    }
    rest(pause(join_.accepted != 0 ? kConfirmEvery : kJoinEvery));
  }
}

void Former::note_proposed(const Proposal& proposal) {
  join_.proposed_max = std::max(join_.proposed_max, proposal.number);
}

void Former::note_accepted(const Proposal& proposal) {
  note_proposed(proposal);
  join_.accepted = proposal.number;
  join_.pending = past_group_of(proposal);
}

void Former::wait_for_training_ones() {
  const TimePoint longer = std::min(Deadline::after(wait_).time(), return_deadline_.time());
  if (longer <= deadline_.time()) return;
  deadline_ = Deadline(longer);
  if (std::exchange(has_said_wait_, true)) return;
  log_warn("[collective.form] the others train in group ", lack_.left_behind,
           "; this process waits until they call rebuild(), at most ",
           std::chrono::ceil<std::chrono::seconds>(return_deadline_.remaining()).count(), " s");
}

void Former::note(Lack lack) {
  std::erase(lack.missing, self_.self.task);  // a leader that this process cannot reach may miss it
  const std::set<int> missing(lack.missing.begin(), lack.missing.end());
  // A process that has just begun to lead does not know yet who is missing.
  for (int task = 0; !missing.empty() && task < static_cast<int>(tasks_.size()); ++task) {
    if (!missing.contains(task)) came_.insert(task);
  }
  if (lack.is_final && lack.obstacle != Obstacle::none) {
    lack_ = std::move(lack);
    throw error_of(lack_, tasks_, came_);
  }
  if (has_noted_lack_ && !deadline_.is_infinite()) {
    const Duration margin = std::min<Duration>(kLastMoments, (deadline_.time() - started_) / 4);
    if (Clock::system().now() >= deadline_.time() - margin) return;
  }
  has_noted_lack_ = true;
  lack_ = std::move(lack);
  if (lack_.obstacle == Obstacle::left_behind && join_.last.number == 0) wait_for_training_ones();
}

void Former::fail_because_of(int task, const Error& why, bool is_told) {
  try {
    if (!is_told) tell_difference(task, why);
  } catch (const Error& error) {  // no descriptor is left
    log_debug("[collective.form] some may wait for a worker that differs: ", error.what());
  }
  const WorkerTask& differs = tasks_[static_cast<std::size_t>(task)];
  throw Error(why.code(), why.message() + " (" + name_of(differs) + ")").at(differs.name);
}

// This process ends now, as does the one that differs. Processes that have met neither would wait,
// and so would one that listens a moment later.
void Former::tell_difference(int task, const Error& why) {
  std::vector<int> untold;
  for (int other = 0; other < static_cast<int>(tasks_.size()); ++other) {
    if (other != self_.self.task) untold.push_back(other);
  }
  const Deadline deadline = Deadline::after(kTellTimeout);
  while (!untold.empty() && !deadline.has_expired()) {
    std::vector<Conversation*> told;
    for (const int other : untold) {
      Request request{.kind = RequestKind::differs, .from = self_, .to = other};
      request.different = task;
      request.difference = why.message();
      with(other).give_up("a process differs");  // the last question may have no answer
      with(other).ask(encode(request));
      told.push_back(&with(other));
    }
    send_all(std::move(told));
    std::erase_if(untold, [&](int other) {
      return with(other).state() == State::pending || with(other).state() == State::answered;
    });
    const Deadline next = Deadline::after(kAskEvery);
    if (!untold.empty()) rest(Deadline(std::min(deadline.time(), next.time())));
  }
}

void Former::check_may_wait() {
  if (join_.last.number == 0) {
    if (const std::optional<Formation::Mistake> mistake = formation_.take_mistake())
      fail_because_of(mistake->task, mistake->error, mistake->is_told);
  }
  if (deadline_.has_expired()) throw error_of(lack_, tasks_, came_);
}

}  // namespace cohort::collective::formation
