// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/formation/roster.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace cohort::collective::formation {
namespace {

// Processes that join ask about a hundred times a second. One that stops for this long is left out.
constexpr auto kSilenceMax = std::chrono::seconds(3);
// When all expected processes are in: for others that just arrive.
constexpr auto kGrace = std::chrono::milliseconds(500);
// For others that were seen to be forming a group, and so will join if they can.
constexpr auto kGraceForForming = std::chrono::seconds(2);
// Before a deadline, so that all members still hear of the group in time.
constexpr auto kMarginMax = std::chrono::milliseconds(500);

bool contains(const std::vector<Member>& members, const Member& member) {
  return std::find(members.begin(), members.end(), member) != members.end();
}

bool is_same(const PastGroup& a, const PastGroup& b) {
  return a.number == b.number && a.members == b.members;
}

bool share_one(const std::vector<std::uint64_t>& a, const std::vector<std::uint64_t>& b) {
  return std::any_of(a.begin(), a.end(), [&](std::uint64_t address) {
    return address != 0 && std::find(b.begin(), b.end(), address) != b.end();
  });
}

}  // namespace

bool is_gone(const PastGroup& last, std::size_t i, const AbsentTask& task,
             const RosterRules& rules) {
  if (i >= last.places.size()) return false;
  const Place& place = last.places[i];
  if (rules.has_ended && rules.has_ended(place)) return !task.was_silent || rules.share_memory;
  const bool is_other = task.incarnation != 0 && task.incarnation != last.members[i].incarnation;
  const bool is_dead = task.kind == AbsentTask::Kind::dead && !task.was_silent;
  return (is_dead || is_other) && share_one(task.addresses, place.addresses);
}

Roster::Roster(int num_tasks, Member leader, const Join& own, TimePoint now, RosterRules rules)
    : num_tasks_(num_tasks), leader_(leader), started_(now), rules_(std::move(rules)) {
  join(leader, own, 0, now);
}

void Roster::join(Member member, const Join& join, std::uint64_t connection, TimePoint now) {
  Joined& joined = joined_[member.task];
  // The task started again, before its old connection was seen to break.
  if (joined.member != member && joined.member.incarnation != 0) lost_.push_back(joined.member);
  joined = {member, join, connection, now};
  if (join.remaining_ms >= 0) joined.deadline = now + std::chrono::milliseconds(join.remaining_ms);
  number_max_ = std::max({number_max_, join.number_max, join.last.number, join.proposed_max});
}

void Roster::lose(std::map<int, Joined>::iterator at) {
  lost_.push_back(at->second.member);
  joined_.erase(at);
}

void Roster::leave(std::uint64_t connection) {
  const auto found = std::find_if(joined_.begin(), joined_.end(), [&](const auto& one) {
    return one.second.connection == connection;
  });
  if (found != joined_.end()) lose(found);
}

bool Roster::is_proposed(const Member& member) const {
  if (phase_ == Phase::gathering) return false;
  return std::any_of(proposal_.members.begin(), proposal_.members.end(),
                     [&](const ProposedMember& one) { return one.who == member; });
}

bool Roster::have_all_been_told() const {
  return std::all_of(proposal_.members.begin(), proposal_.members.end(), [&](const auto& one) {
    return one.who == leader_ || told_.contains(one.who.task) || !has_joined(one.who.task);
  });
}

void Roster::update(const Absent& absent, TimePoint now) {
  if (phase_ == Phase::committed) return;
  for (auto it = joined_.begin(); it != joined_.end();) {
    const auto one = it++;
    if (one->second.connection != 0 && now - one->second.seen > kSilenceMax) lose(one);
  }
  for (const auto& [task, state] : absent) number_max_ = std::max(number_max_, state.number);
  const PastGroup last = newest();
  if (phase_ == Phase::preparing) {
    bool have_all_accepted = true;
    for (const ProposedMember& member : proposal_.members) {
      const auto found = joined_.find(member.who.task);
      if (found == joined_.end() || found->second.member != member.who) {
        phase_ = Phase::gathering;
        complete_since_.reset();
        break;
      }
      have_all_accepted = have_all_accepted && (member.who == leader_ ||
                                                found->second.join.accepted == proposal_.number);
    }
    if (phase_ == Phase::preparing) {
      if (have_all_accepted) phase_ = Phase::committed;
      return;
    }
  }
  find_missing(last, absent);
  find_obstacle(last, absent);
  if (may_begin(last, absent, now)) propose(last);
}

// The last group of the first of the members that know the newest number.
PastGroup Roster::newest() const {
  PastGroup last;
  for (const auto& [task, joined] : joined_) {
    if (joined.join.last.number > last.number) last = joined.join.last;
  }
  return last;
}

void Roster::find_missing(const PastGroup& last, const Absent& absent) {
  lack_ = {};
  for (const auto& [task, state] : absent) {
    if (state.number > last.number) lack_.left_behind = std::max(lack_.left_behind, state.number);
  }
  // Also after all members of that group have ended: values of an earlier one must not replace
  // theirs.
  for (const auto& [task, joined] : joined_) {
    const std::uint64_t heard = joined.join.number_max;
    if (last.number != 0 && heard > last.number)
      lack_.left_behind = std::max(lack_.left_behind, heard);
  }
  if (last.number == 0) {
    for (int task = 0; task < num_tasks_; ++task) {
      if (!has_joined(task)) lack_.missing.push_back(task);
    }
    return;
  }
  for (std::size_t i = 0; i < last.members.size(); ++i) {
    const Member& member = last.members[i];
    if (has_joined(member.task) || contains(lost_, member) || is_gone(last, i, absent)) continue;
    const auto state = absent.find(member.task);
    if (state != absent.end() && state->second.kind == AbsentTask::Kind::dead) continue;
    const bool is_missed = std::any_of(joined_.begin(), joined_.end(), [&](const auto& one) {
      return is_same(one.second.join.last, last) && contains(one.second.join.missed, member);
    });
    if (!is_missed) lack_.missing.push_back(member.task);
  }
}

bool Roster::is_gone(const PastGroup& last, std::size_t i, const Absent& absent) const {
  if (i >= last.places.size()) return false;
  const Member& member = last.members[i];
  const Place& place = last.places[i];
  // One address cannot be that of two processes.
  const auto found = joined_.find(member.task);
  if (found != joined_.end()) return share_one(found->second.join.addresses, place.addresses);
  const auto state = absent.find(member.task);
  return formation::is_gone(last, i, state == absent.end() ? AbsentTask{} : state->second, rules_);
}

bool Roster::is_shut_out(const Joined& joined, const PastGroup& last) const {
  if (!joined.join.is_given_up || !is_same(joined.join.last, last)) return false;
  return std::none_of(joined_.begin(), joined_.end(), [&](const auto& one) {
    const Join& other = one.second.join;
    return is_same(other.last, last) && contains(other.missed, joined.member);
  });
}

// If a network is divided, at most one of its two sides has more than half of the members, or half
// and the lowest one; also if only one side knows that some have ended.
bool Roster::has_most(const PastGroup& group, const Absent& absent,
                      std::vector<int>& absent_members) const {
  std::size_t num_counted = 0, num_here = 0;
  bool has_lowest = false;
  for (std::size_t i = 0; i < group.members.size(); ++i) {
    const Member& member = group.members[i];
    const auto found = joined_.find(member.task);
    const bool is_here = found != joined_.end() && found->second.member == member;
    if (!is_here && is_gone(group, i, absent)) continue;
    if (++num_counted == 1) has_lowest = is_here;
    num_here += is_here ? 1 : 0;
    if (!is_here) absent_members.push_back(member.task);
  }
  return 2 * num_here > num_counted || (2 * num_here == num_counted && has_lowest);
}

void Roster::find_obstacle(const PastGroup& last, const Absent& absent) {
  lack_.obstacle = lack_.left_behind != 0 ? Obstacle::left_behind : Obstacle::none;
  shut_out_.clear();
  if (lack_.obstacle != Obstacle::none) {
    int num_absent = num_tasks_ - static_cast<int>(joined_.size());
    for (const auto& [task, state] : absent)
      num_absent -= state.kind == AbsentTask::Kind::dead && !has_joined(task) ? 1 : 0;
    lack_.is_final = num_absent == 0;  // nobody has the values of the newer group
  }
  if (last.number == 0 || lack_.obstacle != Obstacle::none) return;
  std::vector<int> absent_members;
  bool is_enough = has_most(last, absent, absent_members);
  bool has_survivor = false;
  for (const auto& [task, joined] : joined_) {
    if (is_shut_out(joined, last)) shut_out_.insert(task);
    has_survivor = has_survivor || (is_same(joined.join.last, last) && !shut_out_.contains(task));
  }
  if (!has_survivor || shut_out_.contains(leader_.task)) {
    lack_.obstacle = Obstacle::given_up;
    lack_.is_final = absent_members.empty();
    lack_.missing = std::move(absent_members);
    return;
  }
  for (const auto& [task, joined] : joined_) {
    const PastGroup& pending = joined.join.pending;
    if (pending.number > last.number)
      is_enough = has_most(pending, absent, absent_members) && is_enough;
  }
  if (is_enough || rules_.allow_minority) return;
  lack_.obstacle = Obstacle::minority;
  std::sort(absent_members.begin(), absent_members.end());
  absent_members.erase(std::unique(absent_members.begin(), absent_members.end()),
                       absent_members.end());
  lack_.missing = std::move(absent_members);
}

Lack Roster::lack(int task) const {
  Lack lack = lack_;
  if (lack.obstacle != Obstacle::left_behind && lack.obstacle != Obstacle::minority)
    lack.obstacle = shut_out_.contains(task) ? Obstacle::given_up : Obstacle::none;
  const auto found = joined_.find(task);
  lack.is_final = lack_.is_final && found != joined_.end() && found->second.join.last.number != 0;
  return lack;
}

bool Roster::may_begin(const PastGroup& last, const Absent& absent, TimePoint now) {
  if (lack_.obstacle != Obstacle::none) {
    complete_since_.reset();
    return false;
  }
  if (last.number == 0) return lack_.missing.empty();
  if (is_out_of_time(last, now)) return true;
  if (!lack_.missing.empty()) {
    complete_since_.reset();
    return false;
  }
  if (!complete_since_) complete_since_ = now;
  Duration grace = Duration::zero();
  for (int task = 0; task < num_tasks_; ++task) {
    if (has_joined(task)) continue;
    const auto state = absent.find(task);
    const auto kind = state == absent.end() ? AbsentTask::Kind::unknown : state->second.kind;
    if (kind == AbsentTask::Kind::dead) continue;
    const bool is_forming = kind == AbsentTask::Kind::forming;
    grace = std::max<Duration>(grace, is_forming ? Duration(kGraceForForming) : kGrace);
  }
  return now - *complete_since_ >= grace;
}

bool Roster::is_out_of_time(const PastGroup& last, TimePoint now) const {
  TimePoint deadline = TimePoint::max();
  for (const auto& [task, joined] : joined_) {
    // A new process that has little time does not make the others give up a member.
    if (is_same(joined.join.last, last)) deadline = std::min(deadline, joined.deadline);
  }
  if (deadline == TimePoint::max()) return false;
  const Duration margin =
      std::clamp<Duration>((deadline - started_) / 4, Duration::zero(), kMarginMax);
  return now >= deadline - margin;
}

void Roster::propose(const PastGroup& last) {
  proposal_ = {.number = ++number_max_, .last = last.number};
  told_.clear();
  for (const auto& [task, joined] : joined_) {
    if (shut_out_.contains(task)) continue;
    const bool has_values = last.number != 0 && is_same(joined.join.last, last);
    proposal_.members.push_back(
        {joined.member, joined.join.host, joined.join.process, joined.join.addresses, !has_values});
  }
  phase_ = proposal_.members.size() == 1 ? Phase::committed : Phase::preparing;
}

}  // namespace cohort::collective::formation
