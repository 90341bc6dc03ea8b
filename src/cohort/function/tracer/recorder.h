// SPDX-License-Identifier: Apache-2.0
// One pass of a trace: makes a Program of the operators that the boxed fallback receives.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/function/program/program.h"
#include "cohort/function/program/work.h"
#include "cohort/function/trace.h"
#include "cohort/function/tracer/buffer_writes.h"
#include "cohort/function/tracer/call_site.h"
#include "cohort/function/tracer/changes.h"
#include "cohort/function/tracer/memory.h"
#include "cohort/function/tracer/refusal.h"
#include "cohort/function/tracer/state.h"
#include "cohort/function/tracer/values.h"

namespace cohort::function {

// An exception that an operator threw. A value type.
struct OpFailure {
  std::string message;  // LibTorch's
  std::string text;     // with the operator and its inputs
  CallStack stack;

  // Whether `error` is that exception, or contains its message.
  bool explains(const std::exception& error) const;
};

// A gradient that a call has left in .grad.
struct OldGradient {
  at::Tensor leaf;
  at::Tensor value;      // zeros like it
  bool is_zero = false;  // it is always zero
};

// Used only from the tracing thread. The destructor restores everything that the pass changed. Many
// methods because recording an operator needs all the state of a pass: its values, the program,
// what was written. The methods are in files by theme, which are named below; parts that need less
// state are classes of their own (ValueTable, StateKeeper, MemoryWatch).
class Recorder final : public Trace {
 public:
  // `pass` is 0 or 1. `memory` must be installed as long as ops are recorded. `change` is how pass
  // 1 changes the values of pass 0.
  Recorder(const TraceOptions& options, int pass, Change change,
           std::shared_ptr<MemoryWatch> memory);

  // Gives these variables other values until the recorder is destroyed.
  void change_variables(const std::vector<at::Tensor>& variables);
  // Gives these leaves a gradient, as after an earlier call. The body must not use it.
  void add_old_gradients(const std::vector<OldGradient>& gradients);
  // The gradients that the next call of an eager function would find.
  std::vector<OldGradient> old_gradients();
  // Returns private copies of the arguments, which become the program's first inputs.
  std::vector<at::Tensor> add_arguments(const std::vector<at::Tensor>& arguments);
  // Called before the body: records the contents of the variables.
  void watch_variables() {
    for (const at::Tensor& variable : options_.variables) watch(variable);
  }
  // Handles an op of the fallback. `frame` is the fallback's frame: only frames outside of it may
  // be the user's. Throws Error for a refusal; every later call then throws the same.
  void on_op(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack,
             const void* frame);
  // Ends the pass.
  void finish(const std::vector<at::Tensor>& outputs);
  // After finish(): the op list.
  const Program& program() const { return program_; }
  // At any time: the op list so far, with the op that has not returned yet, if there is one.
  Program unfinished_program() const;
  // The composite ops that were called, with only their host values.
  const std::vector<Op>& composite_calls() const { return composite_calls_; }
  // Called after the pass, when nothing calls backward() on its tensors any more. Their whole graph
  // was made in the pass, since tensors of other graphs are refused.
  void release_graphs();
  // The memory whose values belong to this pass alone.
  std::vector<ExampleMemory> example_memory() const { return values_.example_memory(); }
  // The variables that the pass has used.
  std::vector<at::Tensor> variables() const;
  // The error of its refusal; nullopt if it has refused nothing.
  const std::optional<Error>& failure() const { return failure_; }
  // The last exception that an operator threw, which the body may have caught.
  const std::optional<OpFailure>& op_failure() const { return op_failure_; }
  // The specs of the program's values; nullopt for a value that was no tensor of the body.
  std::vector<std::optional<TensorSpec>> specs() const;
  bool drops_gradients() const { return drops_gradients_; }
  // The program as it is sent, with the parts that are known only at the end of the pass.
  Program completed_program() const;
  ProgramInfo info() const;
  const std::vector<at::Tensor>& captured_inputs() const { return captured_inputs_; }
  const std::vector<FrozenTensor>& frozen() const { return frozen_; }
  // Another possible reason for an error, with a remedy, to append to its text; may be empty.
  std::string hint() const;
  // `outputs` without their graph; copied if they alias memory that the pass restores.
  std::vector<at::Tensor> detached(const std::vector<at::Tensor>& outputs);

  std::vector<at::Tensor> iterator_next(std::int64_t resource) override;
  void update(const at::Tensor& variable, const internal::Effect& effect,
              std::span<const at::Tensor> hyper) override;
  LookedUp look_up(const at::Tensor& table, const at::Tensor& keys,
                   const std::function<at::Tensor(const at::Tensor&)>& example_rows) override;
  std::vector<LookedUp> lookups_of(const at::Tensor& table) override;
  void inspect(const std::string& op, std::string_view label, const at::Tensor& value) override;
  void wait_until_positive(const at::Tensor& variable) override;
  void capture_input(const at::Tensor& value) override;
  bool runs_here() const override { return options_.runs_here; }
  std::vector<at::Tensor> call_host(
      std::string_view name, std::int64_t number, const std::vector<at::Tensor>& values,
      const std::vector<at::Tensor>& updated,
      const std::function<std::vector<at::Tensor>()>& example) override;
  std::size_t next_number(const void* key) override { return numbers_by_key_[key]++; }

 private:
  // The in-place writes to a register that no effect has sent yet.
  struct Writes {
    bool is_made = false;
    BufferWrite joined;      // all of them together
    int old = -1;            // the value before, if they can be combined with other workers' writes
    std::size_t old_op = 0;  // the op that copies it
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
  // A variable as it was before the body, or when the body first used it.
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
  bool is_recorded_where_used(const c10::OperatorHandle& op, Arguments arguments);
  void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  bool is_rewritten(const c10::OperatorHandle& op, torch::jit::Stack& stack);
  void record(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  Op encode(const c10::OperatorHandle& op, Arguments arguments);
  void note_composite(const c10::OperatorHandle& op, Arguments arguments);
  struct Write {
    at::Tensor tensor;
    bool is_overwritten;
  };
  std::vector<Write> prepare_memory(const c10::OperatorHandle& op, Arguments arguments);
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

  // failures.cpp
  void note_failure(const c10::OperatorHandle& op, Arguments arguments,
                    const std::exception& error);
  // hint(), with a possible reason in the last op.
  std::string hint_of_op() const;
  // The position, as " [inside aten::linear]; op #3 of the trace of 'step', after aten::t".
  std::string position() const;
  [[noreturn]] void fail(std::string_view what, const std::string& reason);

  // recordable.cpp
  void expect_recordable(const c10::OperatorHandle& op, Arguments arguments);
  // Whether `value` is BatchNorm's count of batches.
  bool is_batch_counter(const c10::IValue& value);
  void expect_random_state() const;
  void expect_own_memory_grows(const c10::OperatorHandle& op, Arguments arguments);
  // If the dtype of a result follows LibTorch's default, writes it into the op: a server may have
  // another default.
  void expect_explicit_dtype(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                             bool has_real_input, Op& recorded);

  // capture.cpp
  int value_of(const at::Tensor& tensor);
  // Gives tensors that the op may reshape in place, but whose value is also that of another tensor,
  // values of their own.
  void separate_reshaped(const c10::OperatorHandle& op, Arguments arguments);
  // Appends an op of the tracer's own with one result, and returns that.
  int add_op(std::string name, std::string overload, std::vector<Arg> args, int result);
  int view_of(const at::Tensor& tensor, int base);
  int capture(const at::Tensor& tensor);
  int add_frozen(const at::Tensor& tensor);
  int add_constant(const at::Tensor& tensor);
  int add_number(const at::Tensor& tensor);
  void expect_freezable(const at::Tensor& tensor) const;
  // Replaces what the caller has read from variables before the trace by its values, which become
  // constants: a graph that leads out of the trace would be recorded and run backwards with it.
  void cut_graphs_of_reads(const c10::OperatorHandle& op, torch::jit::Stack& stack);
  bool is_read_before(const at::Tensor& tensor);
  void expect_small(const at::Tensor& tensor) const;
  int add_variable(const TracedVariable& traced, const at::Tensor& tensor);
  void note_read(const at::Tensor& tensor);
  void note_write(const at::Tensor& tensor, const c10::OperatorHandle& op, Arguments arguments,
                  std::size_t index);

  // memory_use.cpp
  // Records the tensor's content as the expected one.
  void note_content(const at::Tensor& tensor);
  void note_made(const at::Tensor& result, const std::string& op, bool is_fixed);
  void note_size_of_data(const at::Tensor& sparse);
  void note_written(const at::Tensor& tensor, bool is_fixed, bool is_overwritten);
  // Refuses if anything but a recorded op has written since.
  void expect_content(const at::Tensor& part, const TracedMemory& memory) const;
  // Returns the record of the variable, whose first one it is unless there is one already.
  Watched& watch(const at::Tensor& variable);
  // Refuses if the variable has changed before the first op that uses it.
  void expect_untouched(const Watched& watched) const;
  void expect_own_memory(const Watched& watched) const;
  void expect_variables_kept() const;
  void expect_buffers_without_graph() const;
  void note_content_use(const at::Tensor& tensor, bool is_written, bool is_overwritten);
  void watch_memory(const at::Tensor& tensor, int id, bool is_unwritten);
  void add_host_content(const at::Tensor& tensor, int base);
  bool is_old_gradient(const at::Tensor& tensor);
  // The registered variable that has this memory, or nullptr.
  const TracedVariable* variable_at(const c10::StorageImpl* storage) const {
    return options_.variable_of ? options_.variable_of(storage) : nullptr;
  }
  const TracedVariable* variable_at(const at::Tensor& tensor) const {
    return tensor.has_storage() ? variable_at(tensor.storage().unsafeGetStorageImpl()) : nullptr;
  }
  // Whether the tensor's values are the same in every run.
  bool is_fixed(const at::Tensor& tensor);
  bool is_argument_fixed(const c10::IValue& argument);
  // Whether the data on which the shape of a result depends is the same in every run.
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
  void check_update(const at::Tensor& variable, const ProgramVariable& declared,
                    const internal::Effect& effect);
  void add_effect(std::string name, int variable, std::vector<Arg> args);
  int content_of(const at::Tensor& tensor);
  int hyper_value(const at::Tensor& hyper);
  int own_value(const at::Tensor& tensor);
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
  std::unordered_map<const void*, std::size_t, std::hash<const void*>, CountedEqual> watched_at_;
  // The hash of the default generator's state after the last recorded random op.
  std::uint64_t random_state_ = 0;
  // All segments but the first, in order.
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
  // The running statistics of the innermost one that has them.
  std::optional<RunningAverages> averages_;
  std::vector<Op> composite_calls_;
  // The recorded op that is running.
  std::optional<Op> running_;
  // A recorded in-place op is running, and dispatch() sees its inner ops.
  bool is_inside_op_ = false;
  bool has_run_script_ = false;
  bool drops_gradients_ = false;
  // By the number of their table.
  std::multimap<int, LookedUp> lookups_;
  // Whether the last op had a sparse tensor.
  bool is_op_sparse_ = false;
  const void* outermost_frame_ = nullptr;
  std::optional<Error> failure_;
  std::optional<OpFailure> op_failure_;
};

}  // namespace cohort::function
