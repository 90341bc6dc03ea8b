// SPDX-License-Identifier: Apache-2.0
// Forms one group: finds the process that leads, or leads.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/collective/detail/process_groups.h"
#include "cohort/collective/internal/formation/conversation.h"
#include "cohort/collective/internal/formation/formation.h"
#include "cohort/collective/internal/formation/message.h"
#include "cohort/core/clock.h"
#include "cohort/core/error.h"

namespace cohort::collective::formation {

// Used only from the thread that forms a group.
class Former {
 public:
  Former(const std::vector<WorkerTask>& tasks, const Identity& self, Formation& formation,
         Join join, Deadline deadline);

  // Returns when all members have accepted the group. Throws deadline_exceeded, naming the missing;
  // failed_precondition, the first time, if another program answers for a task.
  Proposal run();
  // Join::number_max and Join::proposed_max, as they have become.
  std::uint64_t number_max() const { return join_.number_max; }
  std::uint64_t proposed_max() const { return join_.proposed_max; }

 private:
  std::optional<int> find_leader();
  std::optional<Proposal> lead();
  std::optional<Proposal> follow(int leader);
  // Tells the members that have accepted the group that all have.
  void tell_all();

  Conversation& with(int task);
  Join join_now() const;
  Bytes question(RequestKind kind, int to) const;
  // Asks these tasks from time to time, and notes what they answer.
  void note_answers(const std::vector<int>& tasks);
  AbsentTask heard(int task, const Conversation& conversation);
  bool is_lower_forming() const;
  void note_proposed(const Proposal& proposal);
  // Notes who is missing, for the error at the deadline. Others give up at about the same deadline,
  // but are not those that kept this process waiting; so what comes shortly before it is not noted.
  void note_missing(std::vector<int> missing, std::uint64_t left_behind);
  void check_deadline() const;
  Deadline pause(Duration duration) const;

  const std::vector<WorkerTask>& tasks_;
  const Identity& self_;
  Formation& formation_;
  Join join_;
  const TimePoint started_ = Clock::system().now();
  const Deadline deadline_;
  std::map<int, Conversation> conversations_;
  Absent absent_;
  bool has_noted_missing_ = false;
  std::vector<int> missing_;
  std::uint64_t left_behind_ = 0;
};

}  // namespace cohort::collective::formation
