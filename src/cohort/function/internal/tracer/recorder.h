// SPDX-License-Identifier: Apache-2.0
// One pass of a trace: what the boxed fallback hands over becomes a Program.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/function/internal/program.h"
#include "cohort/function/internal/tracer/buffer_writes.h"
#include "cohort/function/internal/tracer/call_site.h"
#include "cohort/function/internal/tracer/changes.h"
#include "cohort/function/internal/tracer/memory.h"
#include "cohort/function/internal/tracer/refusal.h"
#include "cohort/function/internal/tracer/state.h"
#include "cohort/function/internal/tracer/values.h"
#include "cohort/function/trace.h"

namespace cohort::function {

// An exception that came out of an operator. A value type.
struct OpFailure {
  std::string message;  // LibTorch's
  std::string text;     // with the operator and its inputs
  CallStack stack;

  // Whether `error` is that exception, or passes it on.
  bool explains(const std::exception& error) const;
};

// What a call has left in .grad.
struct OldGradient {
  at::Tensor leaf;
  at::Tensor value;      // zeros like it
  bool is_zero = false;  // it is always zero
};

// Used only from the tracing thread. Its destructor puts back whatever the pass changed.
class Recorder final : public Trace {
 public:
  // `pass` is 0 or 1. `memory` must be installed as long as ops are recorded. `change` is what pass
  // 1 does to the values of pass 0.
  Recorder(const TraceOptions& options, int pass, Change change,
           std::shared_ptr<MemoryWatch> memory);

  // These variables have other values until the recorder goes.
  void change_variables(const std::vector<at::Tensor>& variables);
  // These leaves start with a gradient, as after an earlier call: the body must not use it.
  void add_old_gradients(const std::vector<OldGradient>& gradients);
  // Those that an eager function's next call would find.
  std::vector<OldGradient> old_gradients();
  // Private copies of the arguments, which are then the program's first inputs.
  std::vector<at::Tensor> add_arguments(const std::vector<at::Tensor>& arguments);
  // Before the body: the variables are as they should be.
  void watch_variables() {
    for (const at::Tensor& variable : options_.variables) watch(variable);
  }
  // The fallback's op, and its frame: only what lies outside of that may be the user's. Throws
  // Error; once it has thrown, it goes on throwing the same.
  void on_op(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack,
             const void* frame);
  // Ends the pass.
  void finish(const std::vector<at::Tensor>& outputs);
  // After finish: the op list, its summary, and what was captured.
  const Program& program() const { return program_; }
  // At any time: the op list up to now, and the op that has not returned, if there is one.
  Program unfinished_program() const;
  // The composite ops that were called, with their host values alone.
  const std::vector<Op>& composite_calls() const { return composite_calls_; }
  // After the pass: nothing calls backward() on its tensors any more. All of their graph was made
  // in the pass, since tensors of other graphs are refused.
  void release_graphs();
  // What holds values of this pass alone.
  std::vector<ExampleMemory> example_memory() const { return values_.example_memory(); }
  // The variables that the pass has met.
  std::vector<at::Tensor> variables() const;
  // What it refused; nothing: all went well so far.
  const std::optional<Error>& failure() const { return failure_; }
  // The last exception that an operator threw, which the body may have caught.
  const std::optional<OpFailure>& op_failure() const { return op_failure_; }
  // Of the program's values; none for those that no tensor of the body was.
  std::vector<std::optional<TensorSpec>> specs() const;
  bool drops_gradients() const { return drops_gradients_; }
  // As it is shipped: with what only the end of the pass can tell.
  Program completed_program() const;
  ProgramInfo info() const;
  const std::vector<at::Tensor>& captured_inputs() const { return captured_inputs_; }
  const std::vector<FrozenTensor>& frozen() const { return frozen_; }
  // What else may be the reason of an error, with a remedy, for its end; empty: nothing known.
  std::string hint() const;
  // `outputs` without their graph, and where they alias what the pass puts back, copied.
  std::vector<at::Tensor> detached(const std::vector<at::Tensor>& outputs);

  std::vector<at::Tensor> iterator_next(std::int64_t resource) override;
  void apply(std::string_view rule, const at::Tensor& variable, const at::Tensor& gradient,
             std::span<const at::Tensor> hyper) override;
  void assign(AssignKind kind, const at::Tensor& variable, const at::Tensor& value) override;
  void print(std::string_view label, const at::Tensor& value) override;
  void check_finite(std::string_view label, const at::Tensor& value) override;
  void capture_input(const at::Tensor& value) override;
  std::size_t next_number(const void* key) override { return numbers_by_key_[key]++; }

 private:
  // What in-place writes have done to a register that no effect has sent yet.
  struct Writes {
    bool is_made = false;
    BufferWrite joined;      // all of them together
    int old = -1;            // the value before, where they can be joined with others'
    std::size_t old_op = 0;  // the op that keeps it
  };
  struct VariableUse {
    const TracedVariable* traced;
    at::Tensor tensor;
    bool is_updated = false;
    bool is_merged = false;
    // The segment in which an effect updated it; -1: it was not, or it was pulled again since.
    int updated_in = -1;
    bool is_pulled_again = false;
    Writes writes;
  };
  // A variable as it was before the body, or when the body came to it.
  struct Watched {
    at::Tensor tensor;
    Geometry geometry;
    ContentHash content;
    bool is_met = false;  // an op has used it
  };
  // All but the first segment of a program begin with an op that names the variables to pull again.
  struct Segment {
    std::size_t op;
    std::vector<std::int64_t> variables;
  };
  using Arguments = std::span<const c10::IValue>;

  // recorder.cpp
  void dispatch(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  void note_failure(const c10::OperatorHandle& op, Arguments arguments,
                    const std::exception& error);
  // hint(), and what the op that came last may have to do with it.
  std::string hint_of_op() const;
  // Where the trace is, as "[inside aten::linear]; op #3 of the trace of 'step', after aten::t".
  std::string position() const;
  bool is_recorded_where_used(const c10::OperatorHandle& op, Arguments arguments);
  void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  bool is_rewritten(const c10::OperatorHandle& op, torch::jit::Stack& stack);
  void record(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  Op encode(const c10::OperatorHandle& op, Arguments arguments);
  // Writes the type of a result that follows LibTorch's default into the op: a server has its own.
  void expect_explicit_dtype(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                             bool has_real_input, Op& recorded);
  void note_composite(const c10::OperatorHandle& op, Arguments arguments);
  void expect_recordable(const c10::OperatorHandle& op, Arguments arguments);
  // BatchNorm's count of the batches that it has seen.
  bool is_batch_counter(const c10::IValue& value);
  struct Write {
    at::Tensor tensor;
    bool is_overwritten;
  };
  std::vector<Write> prepare_memory(const c10::OperatorHandle& op, Arguments arguments);
  void expect_random_state() const;
  void expect_own_memory_grows(const c10::OperatorHandle& op, Arguments arguments);
  void expect_known_aliases(const c10::OperatorHandle& op,
                            const std::vector<const c10::StorageImpl*>& memory,
                            const torch::jit::Stack& stack);
  std::vector<Out> number_results(std::size_t count, const torch::jit::Stack& stack);
  int number_result(const at::Tensor& result);
  // Runs `work`; a Refusal becomes an error about `what`.
  template <class Work>
  void guarded(std::string_view what, const Work& work) {
    try {
      work();
    } catch (const Refusal& refusal) {
      fail(what, refusal.reason);
    }
  }
  [[noreturn]] void fail(std::string_view what, const std::string& reason);

  // capture.cpp
  int value_of(const at::Tensor& tensor);
  // Appends an op of the tracer's own with one result, and returns that.
  int add_op(std::string name, std::string overload, std::vector<Arg> args, int result);
  int view_of(const at::Tensor& tensor, int base);
  int capture(const at::Tensor& tensor);
  int add_frozen(const at::Tensor& tensor);
  int add_constant(const at::Tensor& tensor);
  int add_number(const at::Tensor& tensor);
  void expect_freezable(const at::Tensor& tensor) const;
  void expect_small(const at::Tensor& tensor) const;
  int add_variable(const TracedVariable& traced, const at::Tensor& tensor);
  void note_read(const at::Tensor& tensor);
  void note_write(const at::Tensor& tensor, const c10::OperatorHandle& op, Arguments arguments,
                  std::size_t index);

  // memory_use.cpp
  // The tensor's content is as it should be.
  void note_content(const at::Tensor& tensor);
  void note_made(const at::Tensor& result, const std::string& op, bool is_fixed);
  void note_size_of_data(const at::Tensor& sparse);
  void note_written(const at::Tensor& tensor, bool is_fixed, bool is_overwritten);
  // Refuses where something else than a recorded op has written since.
  void expect_content(const at::Tensor& part, const TracedMemory& memory) const;
  void watch(const at::Tensor& variable);
  // Refuses where nothing but the body itself, past all operators, can have changed it.
  void expect_untouched(const Watched& watched) const;
  void expect_own_memory(const Watched& watched) const;
  void expect_variables_kept() const;
  void expect_buffers_without_graph() const;
  void note_content_use(const at::Tensor& tensor, bool is_written, bool is_overwritten);
  void watch_memory(const at::Tensor& tensor, int id, bool is_unwritten);
  void add_host_content(const at::Tensor& tensor, int base);
  bool is_old_gradient(const at::Tensor& tensor);
  bool is_variable(const at::Tensor& tensor) const;
  // The same in every run.
  bool is_fixed(const at::Tensor& tensor);
  bool is_argument_fixed(const c10::IValue& argument);
  // What the shape of a result depends on is the same in every run.
  bool has_fixed_shape(const c10::OperatorHandle& op, Arguments arguments);
  std::vector<bool> fixed_results(const c10::OperatorHandle& op, Arguments arguments);
  void expect_fixed_host_reads(const c10::OperatorHandle& op, Arguments arguments);

  // segments.cpp
  int segment() const { return static_cast<int>(segments_.size()); }
  VariableUse* use_of(const at::Tensor& tensor);
  void renew(const at::Tensor& tensor);
  void note_update(int variable);
  void note_in_place(VariableUse& use, const at::Tensor& tensor, BufferWrite write);
  void send_writes(int variable);
  void drop_writes(VariableUse& use);

  // effects.cpp
  std::vector<at::Tensor> example_element(std::int64_t resource);
  int variable_index(const at::Tensor& variable);
  void add_effect(std::string name, int variable, std::vector<Arg> args);
  int content_of(const at::Tensor& tensor);
  int hyper_value(const at::Tensor& hyper);
  void inspect(std::string name, std::string_view label, const at::Tensor& value);
  bool leaves_gradients();

  const TraceOptions& options_;
  const int pass_;
  const Change change_;
  std::shared_ptr<MemoryWatch> memory_;
  StateKeeper state_;
  ValueTable values_;
  Program program_;
  std::vector<Op> draws_;
  std::map<std::int64_t, int> draw_counts_;
  std::vector<at::Tensor> arguments_;
  std::vector<VariableUse> variables_;
  std::vector<Watched> watched_;
  // That of the default generator after the last recorded random op.
  std::uint64_t random_state_ = 0;
  // What lies between two pushes is a segment; one after the other, but for the first.
  std::vector<Segment> segments_;
  // Ops that turned out to be of no use.
  std::vector<std::size_t> unused_ops_;
  std::vector<at::Tensor> captured_inputs_;
  std::unordered_map<const void*, std::size_t> numbers_by_key_;
  std::vector<FrozenTensor> frozen_;
  // 0-dim constants by dtype, bits and kind.
  std::map<std::string, int> numbers_;
  // The composite ops that are running, outermost first.
  std::vector<std::string> composites_;
  // Of the innermost of them that has such.
  std::optional<RunningAverages> averages_;
  std::vector<Op> composite_calls_;
  // The recorded op that is running.
  std::optional<Op> running_;
  // A recorded in-place op is running, and its inner ops come by.
  bool is_inside_op_ = false;
  bool has_run_script_ = false;
  bool drops_gradients_ = false;
  // Of the op that came last.
  bool is_op_sparse_ = false;
  const void* outermost_frame_ = nullptr;
  std::optional<Error> failure_;
  std::optional<OpFailure> op_failure_;
};

}  // namespace cohort::function
