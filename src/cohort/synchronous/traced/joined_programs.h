// SPDX-License-Identifier: Apache-2.0
// The programs of all replicas for one call, which are made to fit each other once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/mutex.h"
#include "cohort/core/nest.h"
#include "cohort/replicas/replica_threads.h"
#include "cohort/replicas/step_run.h"
#include "cohort/synchronous/traced/replica_program.h"
#include "cohort/workers/strategy_workers.h"

namespace cohort::internal {

using ReplicaPrograms = std::vector<std::shared_ptr<const ReplicaProgram>>;

// Thread-safe: each run at the same time has a state of its own.
class JoinedPrograms {
 public:
  // Throws the errors of run() for steps whose replicas do not make the same calls, and
  // unimplemented where run()'s results cannot be had.
  // `of_others`: with several workers, of each call that replicas make together, the sum of the
  // numbers of the other workers.
  JoinedPrograms(ReplicaPrograms members, MirroredHome* home,
                 const std::vector<std::int64_t>& of_others);

  // Whether no program reads a captured constant that has changed since.
  bool are_current() const;
  // Whether a run writes variables.
  bool write() const;
  // The variables that a run that fails may have changed.
  const StepUndo::Written& used() const { return used_; }
  bool are_random() const { return is_random_; }
  // The results of each replica, for its arguments.
  std::vector<Nest> run(ReplicaThreads* threads,
                        const std::vector<std::vector<Nest>>& arguments) const;

 private:
  void send_later();
  // Throws if an argument shares memory with a variable that the step writes: other replicas may
  // write it while this one reads the argument.
  void check_arguments(const std::vector<std::vector<Nest>>& arguments) const;
  std::unique_ptr<StepRun> take() const;
  void give_back(std::unique_ptr<StepRun> run) const;

  const ReplicaPrograms members_;
  MirroredHome* const home_;
  std::vector<StepReplica::Calls> calls_;  // of each replica
  std::size_t meetings_ = 0;
  bool is_random_ = false;
  StepUndo::Written used_;  // all variables of programs that write some
  // The memory of all components of variables that the step writes, if there are several replicas.
  std::unordered_map<const void*, std::string> written_;
  mutable Mutex mutex_;
  mutable std::vector<std::unique_ptr<StepRun>> idle_ COHORT_GUARDED_BY(mutex_);
};

// Joins the programs of this worker's replicas; all workers make this call. Calls `trace` for the
// program of a replica with other sizes of parts in all_gather(). `home`: nullptr for a strategy
// without variables; `name`: of the function. Throws invalid_argument on all workers if their steps
// make other calls.
using TraceAgain = std::function<std::shared_ptr<const ReplicaProgram>(
    std::size_t replica, const std::vector<GatherSizes>& sizes)>;
std::shared_ptr<const JoinedPrograms> joined(ReplicaPrograms members, MirroredHome* home,
                                             const std::string& name, const TraceAgain& trace);

// The message that each worker has made for a step; `workers`: nullptr for a strategy without any.
std::vector<Bytes> exchanged(StrategyWorkers* workers, std::string_view text,
                             const std::function<StrategyWorkers::Message()>& make);

}  // namespace cohort::internal
