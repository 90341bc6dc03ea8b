// SPDX-License-Identifier: Apache-2.0
// Decides who is in the next group: the state of the process that leads a formation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "cohort/collective/formation/message.h"
#include "cohort/core/clock.h"

namespace cohort::collective::formation {

// The state of a task that has not joined, as far as it is known.
struct AbsentTask {
  enum class Kind : std::uint8_t {
    unknown,  // it was not asked yet, or does not answer
    dead,     // nobody listens at its address
    idle,     // in a group, or not in a formation yet
    forming,
  };
  Kind kind = Kind::unknown;
  std::uint64_t number = 0;       // of the group whose values it has
  std::uint64_t incarnation = 0;  // of the process that answers; 0: none
  // Since the last group it did not answer for a while. If it has ended since, it may have trained
  // on before, in a newer group.
  bool was_silent = false;
  std::vector<std::uint64_t> addresses = {};  // Conversation::addresses()
};
using Absent = std::map<int, AbsentTask>;

struct RosterRules {
  // A group is also formed where the others may be the larger side of a network that is divided.
  bool allow_minority = false;
  // Processes of one host exchange values in memory, where each sees at once that others go on
  // without it.
  bool share_memory = false;
  // Whether a process of this host has ended.
  std::function<bool(const Place&)> has_ended = {};
};

// Whether the process of a member of `last` that has not come is known to have ended.
bool is_gone(const PastGroup& last, std::size_t i, const AbsentTask& task,
             const RosterRules& rules);

// Gathers the processes that join, proposes a group to them, and commits it when all have accepted.
// A process that is lost meanwhile is left out, and the next proposal has a larger number.
// Thread-compatible.
class Roster {
 public:
  enum class Phase : std::uint8_t { gathering, preparing, committed };

  // `leader` never leaves.
  Roster(int num_tasks, Member leader, const Join& join, TimePoint now, RosterRules rules = {});

  void join(Member member, const Join& join, std::uint64_t connection, TimePoint now);
  // A connection closed.
  void leave(std::uint64_t connection);
  // Looks at what has changed; call it often.
  void update(const Absent& absent, TimePoint now);

  Phase phase() const { return phase_; }
  // In the phases after gathering.
  const Proposal& proposal() const { return proposal_; }
  bool is_proposed(const Member& member) const;
  bool has_joined(int task) const { return joined_.contains(task); }
  // Why no group is formed with the process of a task that has joined.
  Lack lack(int task) const;
  // That the member knows of the commit.
  void note_told(const Member& member) { told_.insert(member.task); }
  bool have_all_been_told() const;

 private:
  struct Joined {
    Member member = {};
    Join join = {};
    std::uint64_t connection = 0;  // 0: the leader's own
    TimePoint seen = {};
    TimePoint deadline = TimePoint::max();
  };

  void lose(std::map<int, Joined>::iterator at);
  PastGroup newest() const;
  void find_missing(const PastGroup& last, const Absent& absent);
  void find_obstacle(const PastGroup& last, const Absent& absent);
  // Whether those who have come cannot be the smaller side of a network that is divided. Appends
  // the members that have not come and may be alive.
  bool has_most(const PastGroup& group, const Absent& absent,
                std::vector<int>& absent_members) const;
  // Whether the process of a member that has not come is known to have ended.
  bool is_gone(const PastGroup& last, std::size_t i, const Absent& absent) const;
  // Whether a process that was told that it was given up is without those who gave it up.
  bool is_shut_out(const Joined& joined, const PastGroup& last) const;
  bool may_begin(const PastGroup& last, const Absent& absent, TimePoint now);
  bool is_out_of_time(const PastGroup& last, TimePoint now) const;
  void propose(const PastGroup& last);

  const int num_tasks_;
  const Member leader_;
  const TimePoint started_;
  const RosterRules rules_;
  std::map<int, Joined> joined_;
  std::vector<Member> lost_;  // joined and left again
  Phase phase_ = Phase::gathering;
  Lack lack_;               // for all
  std::set<int> shut_out_;  // tasks for which the obstacle is given_up
  std::optional<TimePoint> complete_since_;
  std::uint64_t number_max_ = 0;
  Proposal proposal_;
  std::set<int> told_;
};

}  // namespace cohort::collective::formation
