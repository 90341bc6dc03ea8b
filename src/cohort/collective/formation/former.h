// SPDX-License-Identifier: Apache-2.0
// Forms one group: finds the process that leads, or leads.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "cohort/collective/formation/conversation.h"
#include "cohort/collective/formation/formation.h"
#include "cohort/collective/formation/message.h"
#include "cohort/collective/process_groups.h"
#include "cohort/core/clock.h"
#include "cohort/core/error.h"

namespace cohort::collective::formation {

// Used only from the thread that forms a group.
class Former {
 public:
  // `return_wait`: as that of ProcessGroups::form(). `silent`: AbsentTask::was_silent of tasks.
  // `settle` returns when `formation` knows of all questions that had arrived.
  Former(
      const std::vector<WorkerTask>& tasks, const Identity& self, Formation& formation, Join join,
      Deadline deadline, Duration return_wait, std::set<int> silent = {},
      std::function<void()> settle = [] {});

  // Returns when all members have accepted the group. Throws deadline_exceeded, naming the missing;
  // unavailable with the cause must_restart if no group may be formed without some that have not
  // come; failed_precondition, the first time, if another program answers for a task, or a process
  // of this job has other options.
  Proposal run();
  // Whether all other members of the last group are known to have ended. Waits until the deadline
  // for those that may just be ending, but not for one that forms the next group.
  bool have_others_ended(const RosterRules& rules);
  // As the members number_max, proposed_max and pending have become.
  const Join& join() const { return join_; }
  const std::set<int>& silent() const { return silent_; }

 private:
  std::optional<int> find_leader();
  std::optional<Proposal> lead();
  std::optional<Proposal> follow(int leader);
  // Tells the members that have accepted the group that all have.
  void tell_all();
  // Tells members of the last group that a group was formed without them. A process that is stopped
  // hears it when it goes on, also if this one has ended by then.
  void tell_left_out(const Proposal& group);
  // Whether it hears now that a newer group was formed without this process than it knew of; the
  // next join_now() tells it. Processes that have ended may have trained in that group.
  bool hears_that_it_was_left_out();

  Conversation& with(int task);
  Join join_now() const;
  Bytes question(RequestKind kind, int to) const;
  // Asks these tasks from time to time, and notes what they answer.
  void note_answers(const std::vector<int>& tasks);
  void forget_answers();
  AbsentTask heard(int task, const Conversation& conversation);
  bool is_lower_forming() const;
  void note_proposed(const Proposal& proposal);
  void note_accepted(const Proposal& proposal);
  // For the error at the deadline. Others give up at about the same deadline, but are not those
  // that kept this process waiting; so what comes shortly before it is not noted. Throws if nobody
  // can come who would change it.
  void note(Lack lack);
  // Others train, so this process has not waited in vain, and goes on waiting.
  void wait_for_training_ones();
  // Throws if a process of this job cannot be in the group, or the deadline has passed.
  void check_may_wait();
  // No group can have both this process and that of the task.
  [[noreturn]] void fail_because_of(int task, const Error& why, bool is_told = false);
  void tell_difference(int task, const Error& why);
  Deadline pause(Duration duration) const;

  const std::vector<WorkerTask>& tasks_;
  const Identity& self_;
  Formation& formation_;
  Join join_;
  const TimePoint started_ = Clock::system().now();
  const Duration wait_;  // until the first deadline
  const Deadline return_deadline_;
  Deadline deadline_;
  std::map<int, Conversation> conversations_;
  Absent absent_;
  std::set<int> silent_;
  const std::function<void()> settle_;
  bool has_noted_lack_ = false;
  bool has_said_wait_ = false;
  Lack lack_;
  // Tasks that have taken part at some time; those among the missing have given up, since others
  // had not come.
  std::set<int> came_;
  std::set<int> refusing_;  // tasks that have answered that they are in no group with this process
};

}  // namespace cohort::collective::formation
