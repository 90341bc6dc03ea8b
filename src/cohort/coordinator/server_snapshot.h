// SPDX-License-Identifier: Apache-2.0
// The values of one moment on all parameter servers, which closures read while others update the
// variables.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cohort/parameter_server_strategy/parameter_server_home.h"
#include "cohort/variable/variable.h"

namespace cohort::coordinator {

class Runtime;

// Immutable. The last copy may end on any thread, under any locks.
class ServerSnapshot {
 public:
  // Sends no closure any more, waits for those that run, and keeps the values of these variables on
  // their servers; then closures go on. Throws deadline_exceeded if a closure does not end, and the
  // errors of servers.
  ServerSnapshot(Runtime& runtime, const std::vector<Variable>& variables);
  // The servers drop the values, soon.
  ~ServerSnapshot();
  ServerSnapshot(const ServerSnapshot&) = delete;
  ServerSnapshot& operator=(const ServerSnapshot&) = delete;

  // As in rpc::PullRequest.
  std::uint64_t number() const { return number_; }

 private:
  const std::weak_ptr<detail::ParameterServerHome> home_;  // the values end with it
  const std::uint64_t number_;
};

}  // namespace cohort::coordinator
