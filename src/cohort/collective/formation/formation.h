// SPDX-License-Identifier: Apache-2.0
// The state of this process with respect to groups, as it reports it to others: in a group, or
// forming one, as the leader or as a follower of another.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cohort/collective/formation/message.h"
#include "cohort/collective/formation/roster.h"
#include "cohort/core/clock.h"
#include "cohort/core/mutex.h"

namespace cohort::collective::formation {

// answer() and closed() are called by the listener, the rest by the thread that forms a group.
// Thread-safe.
class Formation {
 public:
  explicit Formation(Identity self, std::vector<std::string> names, RosterRules rules = {})
      : self_(std::move(self)), names_(std::move(names)), rules_(std::move(rules)) {}

  // To all questions but those that open links, for which it only says why they are refused.
  std::optional<Reply> answer(const Request& request, std::uint64_t connection);
  void closed(std::uint64_t connection);

  // The phases of forming a group: look for a leader and follow it, or lead; and the end, without a
  // new group if it failed.
  void look();
  void lead(const Join& own);
  // Tells the other members that this process has entered the group.
  void enter(std::uint64_t number);
  // From here on this process counts as one that has the values of the group.
  void keep(PastGroup group);
  void stop();

  // The largest number of a group that was formed without this process, as its leader has told; 0
  // if there is none.
  std::uint64_t left_out_of() const;
  // The last group that was kept.
  PastGroup last() const;
  struct Mistake {
    int task = 0;
    Error error;
    bool is_told = false;  // by a process that tells all of the list
  };
  // Why a process of this job that has come since the last call cannot be in a group with this one;
  // nullopt if none has come. Each such process also makes a warning.
  std::optional<Mistake> take_mistake();

  struct Progress {
    Roster::Phase phase = Roster::Phase::gathering;
    Lack lack = {};
    std::vector<int> absent = {};  // all tasks that have not joined
    Proposal proposal = {};
    bool have_all_been_told = false;
  };
  // While this process leads.
  Progress update(const Absent& absent, TimePoint now);

 private:
  enum class Role : std::uint8_t { none, joining, leading };

  Reply answer_join(const Request& request, std::uint64_t connection) COHORT_REQUIRES(mutex_);
  void note_refused(const Request& request);

  const Identity self_;
  const std::vector<std::string> names_;
  const RosterRules rules_;
  mutable Mutex mutex_;
  Role role_ COHORT_GUARDED_BY(mutex_) = Role::none;
  std::uint64_t entered_ COHORT_GUARDED_BY(mutex_) = 0;
  PastGroup last_ COHORT_GUARDED_BY(mutex_);
  std::uint64_t left_out_of_ COHORT_GUARDED_BY(mutex_) = 0;
  std::optional<Mistake> mistake_ COHORT_GUARDED_BY(mutex_);
  std::set<std::uint64_t> refused_ COHORT_GUARDED_BY(mutex_);  // incarnations
  // While this process leads, and afterwards for members that ask whether the group was committed.
  std::optional<Roster> roster_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::collective::formation
