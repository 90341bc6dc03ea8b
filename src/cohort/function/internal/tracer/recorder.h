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
#include "cohort/function/internal/tracer/memory.h"
#include "cohort/function/internal/tracer/refusal.h"
#include "cohort/function/internal/tracer/state.h"
#include "cohort/function/internal/tracer/values.h"
#include "cohort/function/trace.h"

namespace cohort::function {

// Used only from the tracing thread. Its destructor puts back whatever the pass changed.
class Recorder final : public Trace {
 public:
  // `pass` is 0 or 1. `memory` must be installed as long as ops are recorded.
  Recorder(const TraceOptions& options, int pass, std::shared_ptr<MemoryWatch> memory);

  // Private copies of the arguments, which are then the program's first inputs.
  std::vector<at::Tensor> add_arguments(const std::vector<at::Tensor>& arguments);
  // The fallback's op. Throws Error; once it has thrown, it goes on throwing the same.
  void on_op(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  // Ends the pass.
  void finish(const std::vector<at::Tensor>& outputs);
  // After finish: the op list, its summary, and what was captured.
  const Program& program() const { return program_; }
  ProgramInfo info() const;
  const std::vector<at::Tensor>& captured_inputs() const { return captured_inputs_; }
  // `outputs` without their graph, and where they alias what the pass puts back, copied.
  std::vector<at::Tensor> detached(const std::vector<at::Tensor>& outputs);

  std::vector<at::Tensor> iterator_next(std::int64_t resource) override;
  void apply(std::string_view rule, const at::Tensor& variable, const at::Tensor& gradient,
             std::span<const at::Tensor> hyper) override;
  void assign(AssignKind kind, const at::Tensor& variable, const at::Tensor& value) override;
  void capture_input(const at::Tensor& value) override;

 private:
  struct VariableUse {
    const TracedVariable* traced;
    at::Tensor tensor;
    bool is_updated = false;
    // Written in place: its register is assigned at the end.
    bool is_written = false;
  };
  using Arguments = std::span<const c10::IValue>;

  // trace_recorder.cpp
  void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  void record(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  Op encode(const c10::OperatorHandle& op, Arguments arguments);
  void expect_recordable(const c10::OperatorHandle& op, Arguments arguments) const;
  std::vector<at::Tensor> prepare_memory(const c10::OperatorHandle& op, Arguments arguments);
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

  // trace_capture.cpp
  int value_of(const at::Tensor& tensor);
  // Appends an op of the tracer's own with one result, and returns that.
  int add_op(std::string name, std::string overload, std::vector<Arg> args, int result);
  int view_of(const at::Tensor& tensor, int base);
  int capture(const at::Tensor& tensor);
  int add_constant(const at::Tensor& tensor);
  int add_number(const at::Tensor& tensor);
  void expect_freezable(const at::Tensor& tensor) const;
  void expect_small(const at::Tensor& tensor) const;
  int add_variable(const TracedVariable& traced, const at::Tensor& tensor);
  void note_read(const at::Tensor& tensor);
  void note_write(const at::Tensor& tensor);
  void watch_memory(const at::Tensor& tensor, int id, bool is_unwritten);
  void add_host_content(const at::Tensor& tensor, int base);
  void note_content_use(const at::Tensor& tensor, bool is_written, bool is_overwritten);

  // trace_effects.cpp
  int variable_index(const at::Tensor& variable);
  void add_effect(std::string name, int variable, std::vector<Arg> args);
  int content_of(const at::Tensor& tensor);
  int hyper_value(const at::Tensor& hyper);

  const TraceOptions& options_;
  const int pass_;
  std::shared_ptr<MemoryWatch> memory_;
  StateKeeper state_;
  ValueTable values_;
  Program program_;
  std::vector<Op> draws_;
  std::map<std::int64_t, int> draw_counts_;
  std::vector<VariableUse> variables_;
  std::vector<at::Tensor> captured_inputs_;
  // 0-dim constants by dtype, bits and kind.
  std::map<std::string, int> numbers_;
  // The composite ops that are running, outermost first.
  std::vector<std::string> composites_;
  // A recorded in-place op is running, and its inner ops come by.
  bool is_inside_op_ = false;
  const void* outermost_frame_ = nullptr;
  std::optional<Error> failure_;
};

}  // namespace cohort::function
