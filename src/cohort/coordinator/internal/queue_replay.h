// SPDX-License-Identifier: Apache-2.0
// Replays recorded cases, as JSON texts, against the pure state machine. Only tests use it.
//
// The threads of a case are simulated: each is a list of acts, and an act that would block is tried
// again after every act of another thread. The simulated time advances when no thread can act.
#pragma once

#include <cstddef>
#include <string>

namespace cohort::coordinator::internal {

// Runs the steps `queue` and `q`. Returns the first difference from the recorded (or recommended)
// result, with its step; empty: no difference. Throws for an unknown step.
std::string replay_queue(const std::string& steps);

// Runs the steps `classify` and `transient`, and skips all others, which need a cluster.
std::string replay_failures(const std::string& steps, std::size_t workers);
bool is_about_failures(const std::string& steps);

}  // namespace cohort::coordinator::internal
