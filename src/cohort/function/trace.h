// SPDX-License-Identifier: Apache-2.0
// Running a C++ function once over real tensors and writing down the ATen operators it calls.
//
// A trace leaves no mark: contents of registered variables, .grad fields and the default
// generator's state are put back, also when it fails. It runs the body twice, with other values of
// arguments, drawn elements and variables, and refuses a body whose two op lists differ: the body
// read some of these values on the host, and the program would have them frozen.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/core/resource_host.h"
#include "cohort/function/frozen_tensor.h"
#include "cohort/function/prepared_program.h"

namespace cohort::function {

// A tensor that the body reads or updates and that lives elsewhere, known by its storage.
struct TracedVariable {
  std::string name;
  // Updates go to an owner through effect ops. An in-place write of a trainable one is then
  // refused; of any other (batch-norm statistics) it becomes one assign at the end.
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
  // Gives Traced::listing.
  bool lists_ops = false;
  // All variables that variable_of knows: the second pass gives them other values, also those that
  // the body reads on the host alone. Without them, only those that an op of the first pass uses.
  std::vector<at::Tensor> variables = {};
  // Leaves whose .grad field the body may look at before any op uses them (zero_grad): undefined
  // during the trace, as that of every leaf an op uses.
  std::vector<at::Tensor> leaves = {};
  // Errors say where the op was called; finding that takes up to a second in a program with much
  // debug information.
  bool names_call_site = true;
};

struct Traced {
  Bytes bytes;
  ProgramInfo info;
  // Values read at every call in place of being frozen (learning rates): appended to the inputs in
  // this order.
  std::vector<at::Tensor> captured_inputs;
  // Tensors from outside whose values the program has as constants, and which live on.
  std::vector<FrozenTensor> frozen;
  // What the body returned in the first pass.
  std::vector<at::Tensor> example_outputs;
  // The program for people to read, an operator a line.
  std::string listing;
  // The body called backward(), but nothing was updated with a gradient and none was returned.
  bool drops_gradients = false;
  // Where a tensor comes from that lives on outside of the body, which did not return it, with the
  // example's values: "aten::mul made it". Empty: there is none.
  std::string escaped;
};

using TraceBody = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

// `inputs` and `other_inputs`: equal specs. The second pass changes the values of `inputs` (see
// internal/tracer/changes.h) and takes `other_inputs` where the body throws for those; where all
// integers of an input are equal, the values of `other_inputs` come first. Throws invalid_argument
// naming the op, the reason and the call site. One trace at a time in a process (others wait); a
// nested one on the same thread is failed_precondition.
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
  // `variable`: a registered variable's tensor. `hyper`: captured or traced 0-dim tensors.
  virtual void apply(std::string_view rule, const at::Tensor& variable, const at::Tensor& gradient,
                     std::span<const at::Tensor> hyper) = 0;
  virtual void assign(AssignKind kind, const at::Tensor& variable, const at::Tensor& value) = 0;
  // What inspection.h does where the program runs.
  virtual void print(std::string_view label, const at::Tensor& value) = 0;
  virtual void check_finite(std::string_view label, const at::Tensor& value) = 0;
  // Marks `value` as read at every call. Must come before its first use in the body. Both passes
  // see the value it has: others may be reading it.
  virtual void capture_input(const at::Tensor& value) = 0;
  // How often this pass was asked with the same key before: numbers the updates of an optimizer.
  virtual std::size_t next_number(const void* key) = 0;
};

}  // namespace cohort::function
