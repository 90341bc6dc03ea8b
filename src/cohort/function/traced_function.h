// SPDX-License-Identifier: Apache-2.0
// A function for one signature of its calls: its programs for the elements met so far, what they
// capture, and the structure of its result. It knows neither where the programs run nor where the
// variables are.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/export.h"
#include "cohort/core/mutex.h"
#include "cohort/core/nest.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/function/call_signature.h"
#include "cohort/function/function.h"
#include "cohort/function/program/result_structure.h"
#include "cohort/function/trace.h"

namespace cohort::function {

// The variables that a trace may use, and what its caller adds to each of the two passes.
struct TraceSetting {
  // As in TraceOptions.
  std::function<const TracedVariable*(const void* storage)> variable_of = {};
  std::vector<at::Tensor> variables = {};
  // The tensor of a variable that variable_of knows.
  std::function<at::Tensor(const std::string& name)> tensor_of = {};
  // The draw of current_worker_index(): another index in each pass, if there are several workers.
  std::function<std::vector<at::Tensor>(int pass)> worker_index = {};
  // The program runs in this process, where updates read the hyperparameters themselves.
  bool runs_here = false;
  TakesRows takes_rows = {};
  // Called before each pass, with the tensors among the arguments as the function gets them.
  std::function<void(const std::vector<at::Tensor>& inputs)> begin_pass =
      [](const std::vector<at::Tensor>&) {};
  // Throws if tensor `number` of the result cannot be returned from a call.
  std::function<void(const at::Tensor& tensor, std::size_t number)> check_result =
      [](const at::Tensor&, std::size_t) {};
};

// The frozen values of the programs that LibTorch lets one compare later. A value type.
struct FrozenState {
  std::vector<std::pair<at::Tensor, bool>> flags;  // variables that the step uses: requires_grad
  std::vector<FrozenTensor> tensors;
};
enum class Freshness : std::uint8_t { current, other_flags, stale };

// Traces run one at a time, on any thread, in the signature's mode. The methods that are for the
// tracing thread alone say so; all others may be called from any thread meanwhile.
class COHORT_API TracedFunction {
 public:
  using Tensors = std::vector<at::Tensor>;
  TracedFunction(Function function, CallSignature signature);

  const Function& function() const { return function_; }
  const std::string& name() const { return function_.name(); }
  bool is_registered() const { return !function_.state()->registered_name.empty(); }
  const CallSignature& signature() const { return signature_; }

  // Traces with these elements, one for each resource, in two versions of equal specs and different
  // values. Returns the interface of the program, which is the last one of programs().
  ProgramInfo trace_first(const TraceSetting& setting, const std::vector<Tensors>& elements,
                          const std::vector<Tensors>& others);
  // Whether there is a program for the specs of these elements. For the tracing thread.
  bool has_program_for(const Tensors& drawn) const;
  // Traces for the elements that a worker drew: the fields of every draw, one after the other.
  // Returns nothing, and traces nothing, if there is a program for their specs already.
  std::optional<ProgramInfo> trace_drawn(const TraceSetting& setting, const Tensors& drawn);
  // How these elements differ from those of the last trace, with the remedy. For the tracing
  // thread.
  std::string advice_for(const Tensors& drawn) const;
  // Removes the last program. For the tracing thread.
  void drop_last_program();
  // For the tracing thread.
  const std::vector<Bytes>& programs() const { return programs_; }
  // Whether the function draws elements from that resource. After the first trace.
  bool draws_from(std::int64_t resource) const;

  // other_flags: variables require a gradient now that did not, or the other way round; stale:
  // tensors that the programs hold as constants were written to, or are gone.
  Freshness freshness() const;
  // The values that a call reads when it is made (learning rates), which follow the arguments.
  // Later programs take those of earlier ones first, in the same order.
  std::shared_ptr<const Tensors> captured() const;
  // Costs no lock.
  std::size_t captured_count() const { return captured_count_; }

  // The number of tensors in the result; nothing before the first trace.
  std::optional<std::size_t> result_count() const;
  // The result of a call whose program returned `outputs`. A function that was not traced returns
  // them in a tuple, or a single one alone.
  Nest result_of(Tensors outputs) const;

 private:
  using DrawFn = std::function<Tensors(std::int64_t resource, int draw, int pass)>;
  ProgramInfo trace(const TraceSetting& setting, const DrawFn& draw);
  Tensors drawn_fields(const Tensors& drawn, std::int64_t resource, int draw) const;
  Nest call(const Tensors& inputs) const;
  void take_notes(Traced& traced) const;
  ProgramInfo adopt(const TraceSetting& setting, Traced traced);
  void publish();

  const Function function_;
  const CallSignature signature_;
  std::vector<std::size_t> field_counts_;  // of each resource's elements
  // Only for the tracing thread.
  std::vector<Bytes> programs_;
  std::vector<std::vector<TensorSpec>> drawn_specs_;  // of each program, flat
  std::vector<ProgramInfo::Draw> draws_;              // of the first program: the order for all
  Tensors captured_;                                  // of all programs
  FrozenState frozen_;
  // Set by the first trace, before another thread knows the function.
  std::optional<ResultStructure> result_;
  // The results of all traces so far. They are never changed, only replaced.
  struct Published {
    std::shared_ptr<const Tensors> captured;
    std::shared_ptr<const FrozenState> frozen;
  };
  mutable Mutex mutex_;
  Published published_ COHORT_GUARDED_BY(mutex_);
  // These tell whether values are published. Most functions have none, so most calls need not lock.
  std::atomic<std::size_t> captured_count_ = 0;
  std::atomic<bool> has_frozen_ = false;
};

// The result of a call of a registered function: a single tensor alone, several as a tuple, none as
// an empty Nest.
COHORT_API Nest result_of_registered(std::vector<at::Tensor> outputs);

// Other values of the same specs: rows rotated by one, or the same where there is one row only.
COHORT_API std::vector<at::Tensor> rotated(const std::vector<at::Tensor>& tensors);

}  // namespace cohort::function
