// SPDX-License-Identifier: Apache-2.0
// A step as one replica runs it: traced in the replica's context for one signature of its
// arguments, and bound to its components of variables.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cohort/core/nest.h"
#include "cohort/function/prepared_program.h"
#include "cohort/function/traced_function.h"
#include "cohort/replicas/step_call.h"
#include "cohort/replicas/step_run.h"
#include "cohort/strategy/replica_trace.h"
#include "cohort/synchronous/mirrored/mirrored_home.h"

namespace cohort::internal {

// Everything in which two calls of a step may differ and still need two programs. A value type.
struct StepSettings {
  function::TracingMode thread;
  std::vector<std::vector<bool>> modules;  // train() and eval()

  static StepSettings current(MirroredHome* home);
  bool operator==(const StepSettings&) const = default;
};

// Immutable after the constructor. Thread-safe.
class ReplicaProgram {
 public:
  // Traces the function in replica `replica` of the strategy, on this thread. `home`: nullptr for a
  // strategy without variables; `gathers`: as ReplicaTrace takes it. Throws the errors of a trace.
  ReplicaProgram(Strategy& strategy, MirroredHome* home, Function function, std::size_t replica,
                 const std::vector<Nest>& arguments, const StepSettings& mode,
                 const std::vector<GatherSizes>& gathers);

  bool matches(std::span<const Nest> arguments, const StepSettings& mode) const {
    return mode == mode_ && traced_.signature().matches(arguments, mode.thread);
  }
  function::Freshness freshness() const { return traced_.freshness(); }
  const function::CallSignature& signature() const { return traced_.signature(); }
  const StepSettings& mode() const { return mode_; }
  bool is_random() const { return program_->info().is_random; }
  bool writes() const { return !written_.empty(); }  // a variable
  std::vector<Variable> written_variables() const;
  const std::vector<Variable>& variables() const { return handles_; }  // that it uses
  const ReplicaTrace::Calls& calls() const { return calls_; }
  // Whether this call changes variables that the program does not read after it.
  bool may_change_later(std::size_t call) const { return changes_later_.at(call); }
  const std::vector<std::int64_t>& gathered() const { return gathered_; }
  const std::vector<GatherSizes>& assumed_gathers() const { return assumed_; }

  // Runs the program in one replica of `run`, on its thread. `seed`: of the replica's random
  // numbers; none: they come from LibTorch's default generator.
  Nest run(StepRun& run, std::size_t replica, const StepReplica::Calls& calls,
           std::span<const Nest> arguments, std::optional<std::uint64_t> seed) const;

 private:
  class Tracing;
  Nest result_of(std::vector<at::Tensor> outputs, const std::vector<at::Tensor>& inputs) const;
  void note_use_of_variables(const std::vector<std::vector<at::Tensor>>& changed_by_calls);
  void note_writes() const;

  const StepSettings mode_;
  const bool is_central_;  // whether values are kept elsewhere (CentralCopies)
  function::TracedFunction traced_;
  std::shared_ptr<const function::PreparedProgram> program_;
  ReplicaTrace::Calls calls_;
  std::vector<bool> changes_later_;
  std::vector<std::int64_t> gathered_;
  std::vector<GatherSizes> assumed_;
  std::vector<Variable> handles_;  // keep the variables alive
  std::vector<at::Tensor> variables_;
  std::vector<at::Tensor> written_;               // those of the variables that the step writes
  std::vector<at::Tensor> written_by_operators_;  // of these, not by calls alone
  // The results that are objects from outside of the step, or its arguments: their numbers among
  // the tensors of the result.
  std::vector<std::pair<std::size_t, TensorIdentity>> given_results_;
};

}  // namespace cohort::internal
