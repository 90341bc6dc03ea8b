// SPDX-License-Identifier: Apache-2.0
// Asks the workers of a synchronous job from outside how far they are, at the addresses where they
// form groups.
//
//   const auto found = probe_members({{"worker:0", "h1:4000"}}, job, Deadline::after(5s));
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/collective/process_groups.h"
#include "cohort/core/clock.h"
#include "cohort/core/export.h"
#include "cohort/core/task_progress.h"

namespace cohort::collective {

// A worker tells this about itself.
struct MemberStatus {
  std::string task = {};  // "worker:1"; empty: the asker does not know the job
  std::uint64_t incarnation = 0;
  Duration uptime = Duration::zero();  // since it listens
  std::uint64_t group = 0;             // the number of its group; 0: it has been in none
  int workers = 0;                     // of that group
  bool is_forming = false;             // it waits for others to form the next one
  // Without values if the asker does not know the job: their names are the program's.
  TaskProgress progress = {};
};

struct MemberProbe {
  enum class State : std::uint8_t {
    answers,
    nobody_listens,     // the connection was refused, or the host cannot be reached
    no_answer,          // before the deadline, as from a stopped process
    stranger,           // another program or version, another task, or a task of another job
    name_not_resolved,  // the host's name has no address, or no name server answers
  };
  State state = State::no_answer;
  MemberStatus status = {};  // of a worker that answers
  std::string reason = {};   // why it did not
};

// Asks all at once on this thread, and returns when each has answered or the deadline has passed.
// The results are in the order of `tasks`, whose names may be empty: any task. If `job` is not
// empty, a worker of another job counts as a stranger. Throws invalid_argument for an address that
// is not "host:port", resource_exhausted if there are too few descriptors.
COHORT_API std::vector<MemberProbe> probe_members(const std::vector<WorkerTask>& tasks,
                                                  const std::string& job, Deadline deadline);

}  // namespace cohort::collective
