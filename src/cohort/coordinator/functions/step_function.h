// SPDX-License-Identifier: Apache-2.0
// A traced function as the workers know it, with its number and the parameter servers of its
// variables.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "cohort/coordinator/functions/kept_arguments.h"
#include "cohort/core/mutex.h"
#include "cohort/core/nest.h"
#include "cohort/data/element.h"
#include "cohort/function/function.h"
#include "cohort/function/traced_function.h"
#include "cohort/parameter_server_strategy/parameter_server_home.h"
#include "cohort/rpc/control.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/variable/hyperparameter.h"

namespace cohort::coordinator {

// Traces run on callers' threads, one at a time. Their results can be read from any thread
// meanwhile.
class StepFunction {
 public:
  // `id` identifies it in messages.
  StepFunction(std::uint32_t id, Function function, function::CallSignature signature,
               ParameterServerStrategy& strategy);

  std::uint32_t id() const { return id_; }
  const std::string& name() const { return traced_.name(); }
  // The part that does not depend on the workers: the signature, the programs, and whether they are
  // still valid.
  const function::TracedFunction& traced() const { return traced_; }

  // Like those of TracedFunction, with the strategy's variables. Only for the thread that traces.
  void trace_first(const std::vector<Fields>& elements, const std::vector<Fields>& others);
  void trace_drawn(const std::vector<at::Tensor>& drawn);
  // Removes the last program, because the workers refused it.
  void drop_last_program();

  // The message for a worker that has the first programs: the others, or the whole function for 0.
  rpc::FunctionBody body(std::size_t programs_before = 0) const;
  // Sends what body() has returned to a worker, which first hears where its variables are.
  void send(const rpc::FunctionBody& body, rpc::ControlClient& worker) const;
  std::size_t program_count() const;
  // The variables of its programs that none of them updates.
  std::vector<Variable> only_read() const;
  // The values for one call of what the traces have captured so far. Counts the call's updates.
  std::vector<at::Tensor> captured(CountedUpdates& counted) const;
  // Whether a call's hyperparameters depend on the number of earlier updates.
  bool varies_with_updates() const;
  // Like captured(), for a call that will find no element: counts no updates.
  std::vector<at::Tensor> captured_uncounted() const;
  // Appends captured values that are missing, as they were at this hyperparameter_time(). Counts
  // their updates if `counted` is given. Returns false, after it has appended the values before it,
  // if a value of that time is no longer known.
  bool add_captured(std::vector<at::Tensor>& captured, std::uint64_t time,
                    CountedUpdates* counted) const;
  // The kept arguments of a call, as tensors.
  std::vector<at::Tensor> restored(const internal::KeptArguments& arguments) const;
  // The result of a call, from the program's outputs. Throws data_loss if their number is wrong.
  Nest result_of(std::vector<at::Tensor> outputs) const;

 private:
  template <class F>
  auto in_strategy(const F& trace) const;
  void adopt(const function::ProgramInfo& info);

  const std::uint32_t id_;
  ParameterServerStrategy& strategy_;
  function::TracedFunction traced_;
  struct Program {
    Bytes bytes;
    std::vector<rpc::FunctionBody::Variable> variables;
    std::vector<Variable> handles;  // of the same, so that they exist as long as the program
  };
  bool has_warned_of_tables_ = false;  // only for the thread that traces
  mutable Mutex mutex_;
  std::vector<Program> programs_ COHORT_GUARDED_BY(mutex_);
  std::unordered_set<std::uint64_t> updated_ COHORT_GUARDED_BY(mutex_);  // variables
  mutable internal::ArgumentTensors small_arguments_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::coordinator
