// SPDX-License-Identifier: Apache-2.0
// One function for one signature: its programs for the elements met so far, and how to bind its
// arguments.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cohort/core/nest.h"
#include "cohort/data/element.h"
#include "cohort/function/function.h"
#include "cohort/function/trace.h"
#include "cohort/rpc/control.h"
#include "cohort/strategy/parameter_server_strategy.h"

namespace cohort::coordinator {

// The shapes of a call: everything in which two calls may differ without another trace is left out.
class CallSignature {
 public:
  // Throws invalid_argument for a remote value, or another handle that is no per-worker iterator.
  explicit CallSignature(std::span<const Nest> arguments);
  bool matches(std::span<const Nest> arguments) const;
  const std::vector<Nest>& pattern() const { return pattern_; }

 private:
  std::vector<Nest> pattern_;  // a tensor leaf is kept as an example, an iterator as its handle
};

// Arguments split into what travels: tensors, and the workers' resources.
struct BoundArguments {
  std::vector<at::Tensor> tensors;
  std::vector<Nest> resources;  // handles, in flatten order
};
BoundArguments bind_arguments(std::span<const Nest> arguments);

// A step's programs. Traces run on callers' threads, one at a time; the rest is thread-compatible.
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
  // Traces for what a worker drew: the fields of every draw, one after the other. Nothing when that
  // is there already.
  void trace_drawn(const std::vector<at::Tensor>& drawn);
  // Registered functions need none.
  bool has_program() const { return is_registered() || !programs_.empty(); }
  std::size_t trace_count() const { return programs_.size(); }

  // As the workers want it, with all programs.
  rpc::FunctionBody body() const;
  // The tensors of a call: `arguments`, then what the trace captured, as it is now.
  std::vector<at::Tensor> inputs_of(std::vector<at::Tensor> arguments) const;
  // The result of a call from the program's outputs.
  Nest result_of(std::vector<at::Tensor> outputs) const;

 private:
  using DrawFn = std::function<std::vector<at::Tensor>(std::int64_t resource, int draw, int pass)>;
  void trace(const DrawFn& draw);
  std::vector<at::Tensor> call(const std::vector<at::Tensor>& inputs, Nest& structure) const;
  void adopt(function::Traced traced);

  const std::uint32_t id_;
  const Function function_;
  const CallSignature signature_;
  ParameterServerStrategy& strategy_;
  std::vector<ElementSpec> resource_specs_;
  std::vector<Bytes> programs_;
  std::vector<std::vector<TensorSpec>> drawn_specs_;  // of each program, flat
  std::vector<function::ProgramInfo::Draw> draws_;    // of the first program: the order for all
  std::vector<rpc::FunctionBody::Placement> placements_;
  std::vector<at::Tensor> captured_;
  Nest
      structure_;  // of the result: a tensor leaf is its number, as an integer inside a map {"": i}
  bool has_structure_ = false;
};

// Other values of the same specs: rows rotated by one, or the same where there is one row only.
std::vector<at::Tensor> rotated(const std::vector<at::Tensor>& tensors);

}  // namespace cohort::coordinator
