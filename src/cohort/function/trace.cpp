// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/trace.h"

#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/library.h>

#include <atomic>
#include <optional>

#include "cohort/core/error.h"
#include "cohort/core/mutex.h"
#include "cohort/function/default_generator.h"
#include "cohort/function/internal/tracer/compare.h"
#include "cohort/function/internal/tracer/key.h"
#include "cohort/function/internal/tracer/memory.h"
#include "cohort/function/internal/tracer/recorder.h"
#include "cohort/function/internal/wire.h"
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
  if (Recorder* recorder = active_recorder.load()) return recorder->on_op(op, rest, stack);
  // A thread that was started inside a trace outlives it with the trace's key.
  c10::impl::ExcludeDispatchKeyGuard off(kTraceKey);
  op.redispatchBoxed(rest, stack);
}

// Once a process, and for good: no trace runs while a library is unloaded.
void install_fallback() {
  static const auto* library = [] {
    auto* made = new torch::Library(torch::Library::IMPL, "_", kTraceKey, __FILE__, __LINE__);
    made->fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
    return made;
  }();
  (void)library;
}

// Ops of this thread go to `recorder` while it stands.
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
  // The body may leave another mode behind.
  TracingModeScope mode_{TracingMode::current()};
};

struct Pass {
  Program program;
  ProgramInfo info;
  std::vector<at::Tensor> captured_inputs;
  std::vector<at::Tensor> outputs;
};

Pass run_pass(int number, const std::vector<at::Tensor>& inputs, const TraceBody& body,
              const TraceOptions& options) {
  // Casts of another pass would look like constants.
  at::autocast::clear_cache();
  auto memory = std::make_shared<MemoryWatch>();
  Recorder recorder(options, number, memory);
  Pass pass;
  std::vector<at::Tensor> arguments = recorder.add_arguments(inputs);
  {
    std::vector<at::Tensor> outputs;
    {
      Recording recording(recorder, memory);
      outputs = body(arguments);
      recorder.finish(outputs);
    }
    pass.outputs = recorder.detached(outputs);
  }
  at::autocast::clear_cache();
  pass.program = recorder.program();
  pass.info = recorder.info();
  pass.captured_inputs = recorder.captured_inputs();
  return pass;
}

void expect_equal(const Pass& first, const Pass& second, const std::string& name) {
  std::string difference = first_difference(first.program, second.program);
  for (std::size_t i = 0; difference.empty() && i < first.captured_inputs.size(); ++i) {
    if (!first.captured_inputs[i].is_same(second.captured_inputs[i]))
      difference = "the two passes captured other inputs";
  }
  COHORT_CHECK(difference.empty(), ErrorCode::invalid_argument, "[function.trace] '", name,
               "' is not the same for other values of its arguments: ", difference,
               ". State of the host (a counter, a number read through data_ptr() or drawn from "
               "std::random, something made on the first call) would be frozen: pass it as an "
               "argument, or make it a variable");
}

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

}  // namespace

Trace* Trace::current() { return is_inside_trace() ? active_recorder.load() : nullptr; }

Traced trace(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& other_inputs,
             const TraceBody& body, const TraceOptions& options) {
  COHORT_CHECK(!is_inside_trace(), ErrorCode::failed_precondition, "[function.trace] '",
               options.name,
               "' was to be traced inside another trace; call the function directly there");
  expect_same_specs(inputs, other_inputs, options.name);
  install_fallback();
  const auto generator_lock = lock_default_generator();  // its state is put back
  Lock lock(trace_mutex);
  try {
    Pass first = run_pass(0, inputs, body, options);
    Pass second = run_pass(1, other_inputs, body, options);
    expect_equal(first, second, options.name);
    return {encode(first.program), std::move(first.info), std::move(first.captured_inputs),
            std::move(first.outputs)};
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& error) {
    throw Error(ErrorCode::unknown, error.what_without_backtrace(), ErrorCause::application)
        .during("trace of '" + options.name + "'");
  } catch (...) {
    throw current_error().during("trace of '" + options.name + "'");
  }
}

}  // namespace cohort::function
