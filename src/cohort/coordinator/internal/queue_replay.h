// SPDX-License-Identifier: Apache-2.0
// Replays recorded cases, as JSON texts, against the pure state machine. Only tests use it.
//
// The threads of a case are simulated: each is a list of acts, and an act that would block is tried
// again after every act of another thread. Time is a number that moves when nothing else can
// happen.
#pragma once

#include <cstddef>
#include <string>

namespace cohort::coordinator::internal {

// Runs the steps `queue` and `q`. Returns the first thing that was not as recorded (or
// recommended), with its step; empty: nothing. Throws for a step it does not know.
std::string replay_queue(const std::string& steps);

// Runs the steps `classify` and `transient` and leaves out all others, which need a cluster.
std::string replay_failures(const std::string& steps, std::size_t workers);
bool is_about_failures(const std::string& steps);

}  // namespace cohort::coordinator::internal
