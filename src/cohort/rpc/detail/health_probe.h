// SPDX-License-Identifier: Apache-2.0
// Asks tasks for their health from outside of the job, and says of those that give none what is at
// their address.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/cluster/task_health.h"
#include "cohort/core/clock.h"
#include "cohort/core/export.h"

namespace cohort::rpc {

struct ProbedTask {
  std::string task;     // who should be there: "worker:1"; empty: any task
  std::string address;  // "host:port"
};

struct ProbeResult {
  enum class State : std::uint8_t {
    answers,
    nobody_listens,  // the connection was refused, or the host cannot be reached
    no_answer,       // not before the deadline, as from a stopped process; or the task is ending
    stranger,        // another program, another task, or a task of another job
    // The host's name has no address, or none now, as where no name server answers. Nothing is
    // known of the task.
    name_not_resolved,
  };
  State state = State::no_answer;
  TaskHealth health;   // of a task that answers
  std::string reason;  // why the state is another one
};

// Asks all at once, a thread each, and returns when each has answered or the deadline has come:
// results in the order of `tasks`. `job_id`: tasks of this job name themselves and the texts of
// their errors, and others are strangers; empty: none of this. Throws invalid_argument for an
// address that is not "host:port", resource_exhausted for want of descriptors or threads.
COHORT_API std::vector<ProbeResult> probe_health(const std::vector<ProbedTask>& tasks,
                                                 const std::string& job_id, Deadline deadline);

}  // namespace cohort::rpc
