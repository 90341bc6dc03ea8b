// SPDX-License-Identifier: Apache-2.0
// Runs a C++ function over real tensors and records the ATen operators that it calls.
//
// A trace restores the contents of registered variables, the .grad fields and the default
// generator's state, also when it fails. It runs the body a second time with other values of
// arguments, drawn elements and variables, and refuses a body whose two op lists differ: such a
// body reads some of these values on the host, and the program would freeze them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/effect_handler.h"
#include "cohort/core/export.h"
#include "cohort/function/frozen_tensor.h"
#include "cohort/function/prepared_program.h"
#include "cohort/function/tracer/sparse_gradients.h"

namespace cohort::function {

// A variable that the body may read or update. The trace recognises its tensor by the storage.
struct TracedVariable {
  std::string name;
  // Effect ops send the updates to the variable's owner. An in-place write to a trainable variable
  // is then refused; the in-place writes to any other (batch-norm statistics) are joined into an
  // effect: assign, assign_add or merge_average.
  bool is_remote = true;
  bool is_trainable = true;
  bool is_handle_only = false;
  // The registered tensor: contiguous, at the start of its memory. Undefined: the first one the
  // body uses.
  at::Tensor tensor;
};

struct TraceOptions {
  std::string name = "function";
  // The variable whose tensor has this storage (an at::StorageImpl*), or nullptr. Must stay valid
  // during the trace.
  std::function<const TracedVariable*(const void* storage)> variable_of = {};
  // The fields of draw `draw` (0, 1, … of one resource) from `resource` in pass 0 or 1: same specs,
  // different values.
  std::function<std::vector<at::Tensor>(std::int64_t resource, int draw, int pass)> draw = {};
  std::int64_t constant_bytes_max = 64 << 10;
  // Whether to make Traced::listing.
  bool lists_ops = false;
  // All variables that variable_of knows. The second pass gives them other values, one of more than
  // 64 MiB in some parts, even if the body reads them only on the host. A variable that is missing
  // here gets other values only if an op of the first pass uses it.
  std::vector<at::Tensor> variables = {};
  // Leaves whose .grad field the body may read before any op uses them (zero_grad). The trace makes
  // it undefined at first, as it does for every leaf that an op uses.
  std::vector<at::Tensor> leaves = {};
  // The program runs in this process, where updates read the hyperparameters themselves.
  bool runs_here = false;
  // The program reads only those rows of a variable that it uses, and updates them alone, where it
  // can (tracer/row_gathering.h).
  bool gathers_rows = false;
  // Unless it is empty: which calls take sparse gradients (tracer/sparse_gradients.h).
  TakesRows takes_rows = {};
  // Errors say where the op was called; finding that takes up to a second in a program with much
  // debug information.
  bool names_call_site = true;
};

struct Traced {
  Bytes bytes;
  ProgramInfo info;
  // Values that are read at every call instead of being frozen (learning rates); they follow the
  // inputs in this order.
  std::vector<at::Tensor> captured_inputs;
  // Tensors from outside the body whose values are constants of the program, and which still exist.
  std::vector<FrozenTensor> frozen;
  // The tensors that the body returned in the first pass.
  std::vector<at::Tensor> example_outputs;
  // The program as text, one line per operator.
  std::string listing;
  // The body called backward(), but nothing was updated with a gradient and none was returned.
  bool drops_gradients = false;
  // The origin ("aten::mul made it") of a tensor that the body stored outside without returning it,
  // and that still has the example's values. Empty: there is none.
  std::string escaped;
};

using TraceBody = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

// `inputs` and `other_inputs` have equal specs. The second pass changes the values of `inputs` (see
// tracer/changes.h), and uses `other_inputs` if the body throws for those. For an input
// whose integers are all equal it tries the values of `other_inputs` first. Throws invalid_argument
// that names the op, the reason and the call site. One trace runs at a time in a process (others
// wait); a nested one on the same thread is failed_precondition.
COHORT_API Traced trace(const std::vector<at::Tensor>& inputs,
                        const std::vector<at::Tensor>& other_inputs, const TraceBody& body,
                        const TraceOptions& options);

// The trace running on this thread, for the library's own effects. Used only from the tracing
// thread.
class COHORT_API Trace {
 public:
  virtual ~Trace() = default;
  // nullptr outside a trace.
  static Trace* current();

  // Records a draw and returns the example element.
  virtual std::vector<at::Tensor> iterator_next(std::int64_t resource) = 0;
  // Records an update of a registered variable, of which this is the tensor. `hyper`: captured or
  // traced 0-dim tensors, in place of the effect's numbers; its `variable` is set here.
  virtual void update(const at::Tensor& variable, const internal::Effect& effect,
                      std::span<const at::Tensor> hyper = {}) = 0;
  // Rows of a table, whose number of rows is unknown and whose tensor therefore has none.
  struct LookedUp {
    at::Tensor rows;    // [n, …], a leaf that requires a gradient if the table does
    at::Tensor keys;    // int64 [n], of the rows; internal::kNoRow for those that no key has
    at::Tensor places;  // like the keys that were looked up: their places among the rows
  };
  // Records a lookup of `keys`, int64 of any shape, of which each may come several times, in a
  // registered variable, of which this is the tensor. `example_rows` returns rows for distinct
  // keys, int64 [m].
  virtual LookedUp look_up(const at::Tensor& table, const at::Tensor& keys,
                           const std::function<at::Tensor(const at::Tensor&)>& example_rows) = 0;
  // All lookups in this table, in this pass.
  virtual std::vector<LookedUp> lookups_of(const at::Tensor& table) = 0;
  // Records an operator of inspection.h, "cohort::print" or "cohort::check_finite".
  virtual void inspect(const std::string& op, std::string_view label, const at::Tensor& value) = 0;
  // Records that the run waits here until the variable, of which this is the tensor, is above 0.
  virtual void wait_until_positive(const at::Tensor& variable) = 0;
  // Marks `value` as read at every call. Must come before its first use in the body. Both passes
  // see its current value, because other threads may be reading it.
  virtual void capture_input(const at::Tensor& value) = 0;
  // Whether the program will run in this process (TraceOptions::runs_here).
  virtual bool runs_here() const = 0;
  // Records a call of the process that runs the program, EffectHandler::call(number, values), which
  // `name` describes. The call changes the registered variables `updated`. Returns what `example`
  // returns: results as they will be, in memory of their own. No operator of `example` is recorded.
  // A value that is a part of a variable is copied before the call.
  virtual std::vector<at::Tensor> call_host(
      std::string_view name, std::int64_t number, const std::vector<at::Tensor>& values,
      const std::vector<at::Tensor>& updated,
      const std::function<std::vector<at::Tensor>()>& example) = 0;
  // The number of earlier calls with this key in this pass; it numbers the updates of an optimizer.
  virtual std::size_t next_number(const void* key) = 0;
};

}  // namespace cohort::function
