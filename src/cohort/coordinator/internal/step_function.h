// SPDX-License-Identifier: Apache-2.0
// One function for one signature: its programs for the elements met so far, and how to bind its
// arguments.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cohort/coordinator/internal/kept_arguments.h"
#include "cohort/core/mutex.h"
#include "cohort/core/nest.h"
#include "cohort/data/element.h"
#include "cohort/function/detail/trace.h"
#include "cohort/function/detail/tracing_mode.h"
#include "cohort/function/function.h"
#include "cohort/rpc/detail/control.h"
#include "cohort/strategy/detail/parameter_server_home.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/variable/detail/hyperparameter.h"

namespace cohort::coordinator {

// The shapes of a call, and the mode of the thread that makes it: everything in which two calls may
// differ without another trace is left out.
class CallSignature {
 public:
  // Throws invalid_argument for a remote value, or another handle that is no per-worker iterator.
  CallSignature(std::span<const Nest> arguments, const function::TracingMode& mode);
  bool matches(std::span<const Nest> arguments, const function::TracingMode& mode) const;
  // Why a call of this signature could not use the program of a call of `earlier`, with the remedy;
  // empty where it is not in the arguments or the mode.
  std::string difference_from(const CallSignature& earlier) const;
  const std::vector<Nest>& pattern() const { return pattern_; }
  const function::TracingMode& mode() const { return mode_; }

 private:
  function::TracingMode mode_;
  std::vector<Nest> pattern_;  // a tensor leaf is kept as an example, an iterator as its spec
};

// Arguments split into what travels: tensors, and the workers' resources.
struct BoundArguments {
  std::vector<at::Tensor> tensors;
  std::vector<Nest> resources;  // handles, in flatten order
};
BoundArguments bind_arguments(std::span<const Nest> arguments);

// What the programs have frozen and LibTorch lets one look at later. A value type.
struct FrozenState {
  std::vector<std::pair<at::Tensor, bool>> flags;  // variables that the step uses: requires_grad
  std::vector<function::FrozenTensor> tensors;
};
enum class Freshness : std::uint8_t { current, other_flags, stale };

// A step's programs. Traces run on callers' threads, one at a time, whichever of them comes first,
// in the signature's mode; what they have made can be asked for from any thread meanwhile.
class StepFunction {
 public:
  // `id`: on the wire.
  StepFunction(std::uint32_t id, Function function, CallSignature signature,
               ParameterServerStrategy& strategy);

  std::uint32_t id() const { return id_; }
  const CallSignature& signature() const { return signature_; }
  const std::string& name() const { return function_.name(); }
  bool is_registered() const { return !function_.state()->registered_name.empty(); }
  // The specs of the elements of its iterators, in flatten order of the arguments.
  const std::vector<ElementSpec>& resource_specs() const { return resource_specs_; }

  // Traces with these elements, one for each resource, in two versions of equal specs and different
  // values.
  void trace_first(const std::vector<Fields>& elements, const std::vector<Fields>& others);
  // Traces for what a worker drew: the fields of every draw, one after the other. False, and
  // nothing is done, when that is there already.
  bool trace_drawn(const std::vector<at::Tensor>& drawn);
  // What of its elements was other than at the last trace, with the shapes and the remedy. Only
  // for the thread that traces.
  std::string advice_for(const std::vector<at::Tensor>& drawn) const;
  // Takes the last trace back: the workers refused it.
  void drop_last_program();
  std::size_t trace_count() const { return programs_.size(); }
  // Whether the step draws elements from that argument. After the first trace.
  bool draws_from(std::int64_t resource) const;

  // other_flags: variables require a gradient now that did not, or the other way round; stale:
  // tensors that the programs hold as constants were written to, or are gone.
  Freshness freshness() const;
  const Function& function() const { return function_; }

  // As the workers want it, with all programs.
  std::shared_ptr<const rpc::FunctionBody> body() const;
  // What the traces captured so far, for one call, whose updates are counted.
  std::vector<at::Tensor> captured(CountedUpdates& counted) const;
  // Whether a call's hyperparameters depend on how many updates there were before.
  bool varies_with_updates() const;
  // The same for a call that will find no element, and counts no updates.
  std::vector<at::Tensor> captured_uncounted() const;
  // Appends what the traces captured and is not there yet, as it was at this hyperparameter_time().
  // False, with what is before it: a value of that time is no longer known.
  bool add_captured(std::vector<at::Tensor>& captured, std::uint64_t time) const;
  // What a call has kept, as tensors.
  std::vector<at::Tensor> restored(const internal::KeptArguments& arguments) const;
  // The result of a call from the program's outputs.
  Nest result_of(std::vector<at::Tensor> outputs) const;

 private:
  using DrawFn = std::function<std::vector<at::Tensor>(std::int64_t resource, int draw, int pass)>;
  void trace(const DrawFn& draw);
  Fields example_worker_index(int pass) const;
  std::vector<at::Tensor> call(const std::vector<at::Tensor>& inputs, Nest& structure) const;
  void take_notes(function::Traced& traced) const;
  void adopt(function::Traced traced);
  void publish();
  std::shared_ptr<const std::vector<at::Tensor>> all_captured() const;

  const std::uint32_t id_;
  const Function function_;
  const CallSignature signature_;
  ParameterServerStrategy& strategy_;
  std::vector<ElementSpec> resource_specs_;
  // Only for the thread that traces.
  std::vector<Bytes> programs_;
  std::vector<std::vector<TensorSpec>> drawn_specs_;  // of each program, flat
  std::vector<function::ProgramInfo::Draw> draws_;    // of the first program: the order for all
  std::vector<std::vector<rpc::FunctionBody::Placement>> placements_;  // of each program
  // Of all programs: a later one takes those of the earlier ones first, in the same order.
  std::vector<at::Tensor> captured_;
  FrozenState frozen_;
  // Set by the first trace, before anybody else knows the function.
  Nest
      structure_;  // of the result: a tensor leaf is its number, as an integer inside a map {"": i}
  bool has_structure_ = false;
  std::size_t result_count_ = 0;  // tensors in the structure
  // What the traces have made so far. Never changed, only replaced.
  struct Published {
    std::shared_ptr<const rpc::FunctionBody> body;
    std::shared_ptr<const std::vector<at::Tensor>> captured;
    std::shared_ptr<const FrozenState> frozen;
  };
  mutable Mutex mutex_;
  Published published_ COHORT_GUARDED_BY(mutex_);
  // Of what is published: most steps have neither, and most calls look no further.
  std::atomic<std::size_t> captured_count_ = 0;
  std::atomic<bool> has_frozen_ = false;
  mutable internal::ArgumentTensors small_arguments_ COHORT_GUARDED_BY(mutex_);
};

// Other values of the same specs: rows rotated by one, or the same where there is one row only.
std::vector<at::Tensor> rotated(const std::vector<at::Tensor>& tensors);

}  // namespace cohort::coordinator
