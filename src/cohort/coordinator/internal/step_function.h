// SPDX-License-Identifier: Apache-2.0
// A traced function as the workers know it: with a number, and with the places of its variables.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/coordinator/internal/kept_arguments.h"
#include "cohort/core/detail/mutex.h"
#include "cohort/core/nest.h"
#include "cohort/data/element.h"
#include "cohort/function/detail/traced_function.h"
#include "cohort/function/function.h"
#include "cohort/rpc/detail/control.h"
#include "cohort/strategy/detail/parameter_server_home.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/variable/detail/hyperparameter.h"

namespace cohort::coordinator {

// Traces run on callers' threads, one at a time, whichever of them comes first; what they have made
// can be asked for from any thread meanwhile.
class StepFunction {
 public:
  // `id`: on the wire.
  StepFunction(std::uint32_t id, Function function, function::CallSignature signature,
               ParameterServerStrategy& strategy);

  std::uint32_t id() const { return id_; }
  const std::string& name() const { return traced_.name(); }
  // What does not depend on the workers: the signature, the programs, how fresh they are.
  const function::TracedFunction& traced() const { return traced_; }

  // As TracedFunction's, with the strategy's variables. Only for the thread that traces.
  void trace_first(const std::vector<Fields>& elements, const std::vector<Fields>& others);
  bool trace_drawn(const std::vector<at::Tensor>& drawn);
  // Takes the last trace back: the workers refused it.
  void drop_last_program();

  // As the workers want it, with all programs.
  std::shared_ptr<const rpc::FunctionBody> body() const;
  // What the traces captured so far, for one call, whose updates are counted.
  std::vector<at::Tensor> captured(CountedUpdates& counted) const;
  // Whether a call's hyperparameters depend on how many updates there were before.
  bool varies_with_updates() const;
  // The same as captured() for a call that will find no element, and counts no updates.
  std::vector<at::Tensor> captured_uncounted() const;
  // Appends what the traces captured and is not there yet, as it was at this hyperparameter_time().
  // Its updates are counted, if `counted` is given. False, with what is before it: a value of that
  // time is no longer known.
  bool add_captured(std::vector<at::Tensor>& captured, std::uint64_t time,
                    CountedUpdates* counted) const;
  // What a call has kept, as tensors.
  std::vector<at::Tensor> restored(const internal::KeptArguments& arguments) const;
  // The result of a call from the program's outputs. Throws data_loss for another number of them.
  Nest result_of(std::vector<at::Tensor> outputs) const;

 private:
  template <class F>
  auto in_strategy(const F& trace) const;
  void adopt(const function::ProgramInfo& info);
  void publish();

  const std::uint32_t id_;
  ParameterServerStrategy& strategy_;
  function::TracedFunction traced_;
  // Of each program; only for the thread that traces.
  std::vector<std::vector<rpc::FunctionBody::Placement>> placements_;
  mutable Mutex mutex_;
  // Never changed, only replaced.
  std::shared_ptr<const rpc::FunctionBody> body_ COHORT_GUARDED_BY(mutex_);
  mutable internal::ArgumentTensors small_arguments_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::coordinator
