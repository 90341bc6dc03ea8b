// SPDX-License-Identifier: Apache-2.0
// Asks tasks for their health from outside of the job. If a task does not answer, finds out what is
// at its address.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/cluster/task_health.h"
#include "cohort/core/clock.h"
#include "cohort/core/export.h"

namespace cohort::rpc {

struct ProbedTask {
  std::string task;     // the expected task: "worker:1"; empty: any task
  std::string address;  // "host:port"
};

struct ProbeResult {
  enum class State : std::uint8_t {
    answers,
    nobody_listens,  // the connection was refused, or the host cannot be reached
    no_answer,  // no answer before the deadline, as from a stopped process; or the task is ending
    stranger,   // another program, another task, or a task of another job
    // The host's name has no address, or no name server answers now. The state of the task is not
    // known.
    name_not_resolved,
  };
  State state = State::no_answer;
  TaskHealth health;   // of a task that answers
  std::string reason;  // why the task did not answer
};

// Asks all at once, on one thread each, and returns when each has answered or the deadline has
// passed. The results are in the order of `tasks`. If `job_id` is not empty, tasks of this job
// return their names and the texts of their errors, and other tasks count as strangers. Throws
// invalid_argument for an address that is not "host:port", resource_exhausted if there are too few
// descriptors or threads.
COHORT_API std::vector<ProbeResult> probe_health(const std::vector<ProbedTask>& tasks,
                                                 const std::string& job_id, Deadline deadline);

}  // namespace cohort::rpc
