// SPDX-License-Identifier: Apache-2.0
// Whether the processes of a task do anything.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>

namespace cohort::cli {

// The activity of all processes of a group together, with their children that have ended.
struct ProcessActivity {
  std::chrono::milliseconds processor_time{0};  // in steps of 10 ms
  bool is_stopped = false;                      // at least one, by SIGSTOP or a debugger
  bool waits_for_a_disk = false;                // at least one
};

// The activity of all process groups of this system.
std::map<pid_t, ProcessActivity> activity_of_groups();

}  // namespace cohort::cli
