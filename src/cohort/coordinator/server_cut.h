// SPDX-License-Identifier: Apache-2.0
// The values of one moment on all parameter servers of a strategy, exported while closures run.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/variable/state_walk.h"
#include "cohort/variable/variable.h"

namespace cohort::coordinator {

class Runtime;

// Used from one thread at a time.
class COHORT_API ServerCut {
 public:
  // Whether the variable is on the servers of the strategy.
  static bool covers(const ParameterServerStrategy& strategy, const Variable& variable);

  // Sends no closure any more, waits for those that run, and marks the moment on all servers of the
  // variables, which it covers. Updates may then replace `bytes_max` bytes on each server before
  // they wait for the export. No other thread may update the variables meanwhile. Throws
  // deadline_exceeded if a closure does not end, and the errors of servers.
  ServerCut(const ParameterServerStrategy& strategy, std::vector<Variable> variables,
            std::uint64_t bytes_max);
  // The servers forget what they keep.
  ~ServerCut();
  ServerCut(const ServerCut&) = delete;
  ServerCut& operator=(const ServerCut&) = delete;

  // Closures go on.
  void resume();
  // Gives the state of that moment, in records of at most about 16 MiB. Call it once. Throws
  // aborted if updates have waited for too long, or the servers have got other values.
  void export_state(const TakeRecord& take) const;

 private:
  const std::shared_ptr<detail::ParameterServerHome> home_;
  const std::vector<Variable> variables_;
  const std::vector<Variable> stored_;  // these, or their shards
  const std::uint64_t cut_;
  std::shared_ptr<Runtime> paused_;  // nullptr: closures go on
};

}  // namespace cohort::coordinator
