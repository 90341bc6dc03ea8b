// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/trace.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/library.h>

#include <atomic>
#include <exception>
#include <optional>
#include <unordered_set>

#include "cohort/core/error.h"
#include "cohort/core/mutex.h"
#include "cohort/core/torch_error.h"
#include "cohort/function/generator_scope.h"
#include "cohort/function/program/wire.h"
#include "cohort/function/tracer/changes.h"
#include "cohort/function/tracer/compare.h"
#include "cohort/function/tracer/key.h"
#include "cohort/function/tracer/memory.h"
#include "cohort/function/tracer/recorder.h"
#include "cohort/function/tracer/row_gathering.h"
#include "cohort/function/tracer/sparse_gradients.h"
#include "cohort/function/tracing_mode.h"

namespace cohort::function {
namespace {

Mutex trace_mutex;
// Not thread-local: the autograd engine copies the caller's dispatch keys to its device threads,
// but nothing else.
std::atomic<Recorder*> active_recorder{nullptr};

bool is_inside_trace() { return c10::impl::tls_is_dispatch_key_included(kTraceKey); }

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  c10::DispatchKeySet rest = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kTraceKey);
  if (Recorder* recorder = active_recorder.load())
    return recorder->on_op(op, rest, stack, __builtin_frame_address(0));
  // A thread that was started inside a trace may outlive it, and still has the trace's key.
  c10::impl::ExcludeDispatchKeyGuard off(kTraceKey);
  op.redispatchBoxed(rest, stack);
}

// Once per process. Never removed: no trace runs while a library is unloaded.
void install_fallback() {
  static const bool is_installed = [] {
    static torch::Library& library =
        *new torch::Library(torch::Library::IMPL, "_", kTraceKey, __FILE__, __LINE__);
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
    return true;
  }();
  (void)is_installed;
}

// Sends the ops of this thread to `recorder` while the object exists.
class Recording {
 public:
  Recording(Recorder& recorder, std::shared_ptr<MemoryWatch> memory)
      : watch_(c10::DebugInfoKind::PROFILER_STATE, std::move(memory)), on_(kTraceKey) {
    active_recorder = &recorder;
  }
  ~Recording() { active_recorder = nullptr; }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

 private:
  c10::DebugInfoGuard watch_;
  c10::impl::IncludeDispatchKeyGuard on_;
  // Restores the mode, which the body may change.
  TracingModeScope mode_{TracingMode::current()};
};

// The results of one run of the body.
struct Pass {
  Program program;
  std::vector<Op> composite_calls;
  std::vector<at::Tensor> variables;
  std::vector<OldGradient> old_gradients;
  // Only without an error:
  Program completed;
  ProgramInfo info;
  std::vector<at::Tensor> captured_inputs;
  std::vector<FrozenTensor> frozen;
  std::vector<at::Tensor> outputs;
  std::vector<std::optional<TensorSpec>> specs;
  bool drops_gradients = false;
  std::string hint;  // for the error when the passes differ
  // The exception of the body, and whether it was the tracer's own refusal.
  std::exception_ptr error;
  bool is_refused = false;
  std::optional<OpFailure> op_failure;
};

// Compares with a tolerance, because sums may round differently from call to call.
bool have_close_values(const std::vector<at::Tensor>& first,
                       const std::vector<at::Tensor>& second) {
  Untraced untraced;
  const auto is_close = [](const at::Tensor& a, const at::Tensor& b) {
    if (!a.defined() || !b.defined()) return a.defined() == b.defined();
    if (TensorSpec::of(a) != TensorSpec::of(b) || a.layout() != b.layout()) return false;
    if (a.layout() != c10::kStrided || !a.device().is_cpu()) return true;
    return a.is_floating_point() ? at::allclose(a, b, 1e-3, 1e-6, true) : at::equal(a, b);
  };
  return std::equal(first.begin(), first.end(), second.begin(), second.end(), is_close);
}

// One trace: the body, and how its passes run.
class Passes {
 public:
  Passes(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& others,
         const TraceBody& body, const TraceOptions& options)
      : inputs_(inputs), others_(others), body_(body), options_(options) {}
  ~Passes() { note_escaped(escaped()); }
  Passes(const Passes&) = delete;
  Passes& operator=(const Passes&) = delete;

  Pass first() {
    Pass pass = run(0, Change::none, {});
    if (pass.error) raise(pass);
    for (const at::Tensor& output : pass.outputs) {
      if (output.defined() && output.has_storage())
        returned_.insert(output.storage().unsafeGetStorageImpl());
    }
    return pass;
  }
  // Memory that the passes made and did not return, and that still exists. Called after the passes.
  std::vector<ExampleMemory> escaped() const {
    std::vector<ExampleMemory> alive;
    for (const ExampleMemory& one : made_) {
      if (one.is_alive() && !returned_.contains(one.storage._unsafe_get_target()))
        alive.push_back(one);
    }
    return alive;
  }
  // Runs the body with other values. If the body throws for them, but did the same up to there,
  // tries values that differ less.
  Pass second(const Pass& first) {
    std::optional<Pass> failed;
    for (const Change change : kChanges) {
      Pass pass = run(1, change, variables_of(first));
      if (!pass.error) return pass;
      if (pass.is_refused) raise(pass);
      expect_beginning(first, pass);
      if (!failed) failed = std::move(pass);
    }
    has_other_values_ = true;
    raise(*failed);
  }
  // The activity, for the context of an error.
  std::string activity() const {
    return "trace of '" + options_.name + "'" +
           (has_other_values_ ? ", with other values of its arguments, elements and variables"
                              : "");
  }
  // If the first pass has left gradients, the next call of an eager function would find them:
  // checks that it would have the same effects. Then drops the gradients from `first`, as memory
  // that `first` itself holds would count as escaped.
  void expect_no_old_gradients(Pass& first) {
    if (first.old_gradients.empty()) return;
    {
      const Pass pass = run(0, Change::none, {}, &first);
      if (pass.error) std::rethrow_exception(pass.error);
      expect_same_effects(first, pass);
    }
    first.old_gradients.clear();
  }
  void expect_equal(const Pass& first, const Pass& second) const {
    std::string difference = first_difference(first.program, second.program);
    for (std::size_t i = 0; difference.empty() && i < first.captured_inputs.size(); ++i) {
      if (!first.captured_inputs[i].is_same(second.captured_inputs[i]))
        difference = "the two passes captured other inputs";
    }
    expect_none(difference, first.hint);
  }

 private:
  std::vector<at::Tensor> inputs_of(Change change) const {
    Untraced untraced;
    std::vector<at::Tensor> values;
    for (std::size_t i = 0; i < inputs_.size(); ++i)
      values.push_back(changed(inputs_[i], others_[i], change));
    return values;
  }

  std::vector<at::Tensor> variables_of(const Pass& first) const {
    std::vector<at::Tensor> variables = options_.variables;
    variables.insert(variables.end(), first.variables.begin(), first.variables.end());
    return variables;
  }

  Pass run(int number, Change change, const std::vector<at::Tensor>& variables,
           const Pass* earlier_call = nullptr) {
    // Casts of another pass would look like constants.
    at::autocast::clear_cache();
    auto memory = std::make_shared<MemoryWatch>();
    Recorder recorder(options_, number, change, memory);
    Pass pass;
    std::vector<at::Tensor> arguments = recorder.add_arguments(inputs_of(change));
    recorder.change_variables(variables);
    recorder.watch_variables();
    if (earlier_call != nullptr) recorder.add_old_gradients(earlier_call->old_gradients);
    try {
      std::vector<at::Tensor> outputs;
      {
        Recording recording(recorder, memory);
        outputs = body_(arguments);
        recorder.finish(outputs);
      }
      pass.outputs = recorder.detached(outputs);
      pass.completed = recorder.completed_program();
      pass.info = recorder.info();
      pass.captured_inputs = recorder.captured_inputs();
      pass.frozen = recorder.frozen();
      if (number == 0 && earlier_call == nullptr) pass.old_gradients = recorder.old_gradients();
    } catch (...) {
      // Code that caught a refusal may have wrapped it in another exception.
      pass.is_refused = recorder.failure().has_value();
      pass.error =
          pass.is_refused ? std::make_exception_ptr(*recorder.failure()) : std::current_exception();
      pass.op_failure = recorder.op_failure();
    }
    at::autocast::clear_cache();
    recorder.release_graphs();
    const std::vector<ExampleMemory> made = recorder.example_memory();
    made_.insert(made_.end(), made.begin(), made.end());
    pass.program = pass.error ? recorder.unfinished_program() : recorder.program();
    pass.composite_calls = recorder.composite_calls();
    pass.variables = recorder.variables();
    pass.hint = recorder.hint();
    pass.drops_gradients = recorder.drops_gradients();
    if (options_.lists_ops || options_.gathers_rows || options_.takes_rows)
      pass.specs = recorder.specs();
    return pass;
  }

  // Adds to an operator's exception its name, its inputs, and where it was called.
  [[noreturn]] void raise(const Pass& pass) const {
    try {
      std::rethrow_exception(pass.error);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      if (!pass.op_failure || !pass.op_failure->explains(error)) throw;
      std::string text = pass.op_failure->text;
      const Error plain = current_error();
      const bool lacks_memory = plain.code() == ErrorCode::resource_exhausted;
      if (lacks_memory) text += "; " + std::string(kMemoryRemedy);
      if (options_.names_call_site) text += pass.op_failure->stack.lines();
      // A worker that runs the operator throws the same code and cause.
      throw Error(lacks_memory ? plain.code() : ErrorCode::invalid_argument, text,
                  ErrorCause::application);
    }
  }

  void expect_beginning(const Pass& first, const Pass& second) const {
    std::string difference = first_difference_so_far(first.program, second.program);
    if (difference.empty())
      difference = first_difference_so_far(first.composite_calls, second.composite_calls);
    expect_none(difference, first.hint);
  }

  // A gradient of zeros is not the same as none: momentum still acts, and weights decay.
  void expect_same_effects(const Pass& first, const Pass& next_call) const {
    std::string difference = first_difference_of_effects(first.program, next_call.program);
    if (difference.empty() && !have_close_values(first.outputs, next_call.outputs))
      difference = "it returns other values";
    COHORT_CHECK(
        difference.empty(), ErrorCode::invalid_argument, "[function.trace] '", options_.name,
        "' does something else after its first call, which leaves gradients in .grad where "
        "there were none: ",
        difference,
        ". A program is the same for all calls: call zero_grad(true), which sets gradients "
        "to none, or minimize(loss) of a cohort optimizer in place of backward()");
  }

  void expect_none(const std::string& difference, const std::string& hint) const {
    COHORT_CHECK(
        difference.empty(), ErrorCode::invalid_argument, "[function.trace] '", options_.name,
        "' is not the same for other values of its arguments, elements and variables: ", difference,
        ". State of the host (a counter, a number read through data_ptr() or drawn from "
        "std::random, something made on the first call) would be frozen: pass it as an "
        "argument, or make it a variable",
        hint);
  }
  const std::vector<at::Tensor>& inputs_;
  const std::vector<at::Tensor>& others_;
  const TraceBody& body_;
  const TraceOptions& options_;
  bool has_other_values_ = false;
  std::vector<ExampleMemory> made_;
  std::unordered_set<const c10::StorageImpl*> returned_;
};

void expect_same_specs(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& others,
                       const std::string& name) {
  bool is_same = inputs.size() == others.size();
  for (std::size_t i = 0; is_same && i < inputs.size(); ++i) {
    is_same = inputs[i].defined() && others[i].defined() &&
              TensorSpec::of(inputs[i]) == TensorSpec::of(others[i]);
  }
  COHORT_CHECK(is_same, ErrorCode::invalid_argument,
               "[function.trace] expected two lists of defined tensors with equal specs to trace '",
               name, "' with");
}

// Which values are pulled, after the program was changed.
void note_variables(const Program& program, ProgramInfo& info) {
  for (std::size_t i = 0; i < program.variables.size(); ++i) {
    info.variables[i].is_read = program.variables[i].is_read;
    info.variables[i].is_handle_only = program.variables[i].is_handle_only;
  }
  info.op_count = program.ops.size();
}

}  // namespace

Trace* Trace::current() { return is_inside_trace() ? active_recorder.load() : nullptr; }

Traced trace(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& other_inputs,
             const TraceBody& body, const TraceOptions& options) {
  COHORT_CHECK(!is_inside_trace(), ErrorCode::failed_precondition, "[function.trace] '",
               options.name,
               "' was to be traced inside another trace; call the function directly there");
  expect_same_specs(inputs, other_inputs, options.name);
  install_fallback();
  const auto generator_lock = lock_default_generator();  // a trace restores its state
  Lock lock(trace_mutex);
  Passes passes(inputs, other_inputs, body, options);
  try {
    Pass first = passes.first();
    passes.expect_equal(first, passes.second(first));
    passes.expect_no_old_gradients(first);
    const std::vector<ExampleMemory> escaped = passes.escaped();
    if (options.gathers_rows) {
      gather_rows(first.completed, first.specs);
      note_variables(first.completed, first.info);
    }
    if (options.takes_rows) make_gradients_sparse(first.completed, first.specs, options.takes_rows);
    // The body's temporary tensors are made from host values, which are frozen anyway.
    std::erase_if(first.frozen, [](const FrozenTensor& one) { return !one.is_alive(); });
    return {.bytes = encode(first.completed),
            .info = std::move(first.info),
            .captured_inputs = std::move(first.captured_inputs),
            .frozen = std::move(first.frozen),
            .example_outputs = std::move(first.outputs),
            .listing = options.lists_ops ? listing(first.completed, first.specs) : "",
            .drops_gradients = first.drops_gradients,
            .escaped = escaped.empty() ? "" : origin_of(escaped.front())};
  } catch (...) {
    throw current_error().during(passes.activity());
  }
}

}  // namespace cohort::function
