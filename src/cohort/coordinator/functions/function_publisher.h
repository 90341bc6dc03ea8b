// SPDX-License-Identifier: Apache-2.0
// The functions of a coordinator: traces them on callers' threads, and sends their programs to the
// workers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cohort/coordinator/datasets/dataset_programs.h"
#include "cohort/coordinator/datasets/iterator_handle.h"
#include "cohort/coordinator/functions/step_function.h"
#include "cohort/coordinator/runtime/runtime_context.h"
#include "cohort/coordinator/workers/worker_pool.h"

namespace cohort::coordinator {

// Thread-safe.
class FunctionPublisher {
 public:
  // All must outlive it.
  FunctionPublisher(RuntimeContext& context, WorkerPool& pool, DatasetPrograms& datasets)
      : context_(context), pool_(pool), datasets_(datasets) {}

  // The step for a call with these arguments, traced if there is none. Other callers see it only
  // after every ready worker has it: until then they wait for the trace.
  std::shared_ptr<StepFunction> step_for(const Function& fn, std::span<const Nest> arguments);
  // A step for a call with a resource that no worker could make. It has no program: the worker that
  // gets the closure reports the error of its resource.
  std::shared_ptr<StepFunction> step_without_program(const Function& fn,
                                                     std::span<const Nest> arguments);
  // Traces a step again for an element that a worker drew, if no program fits it. The caller holds
  // the lock of the stand-ins and the context's `tracing`, and has called set_tracing_late(true)
  // before.
  void trace_drawn(StepFunction& step, const std::vector<at::Tensor>& drawn);
  void set_tracing_late(bool is_tracing_late) COHORT_REQUIRES(runtime_lock) {
    is_tracing_late_ = is_tracing_late;
  }
  // The functions for a worker that returns: all that are announced, and those that earlier
  // closures still use.
  std::vector<std::shared_ptr<StepFunction>> needed_steps() COHORT_REQUIRES(runtime_lock);
  // Forgets the functions that nobody can schedule any more, since the user has dropped them, and
  // with them the variables that they use.
  void forget_unused();

 private:
  // The steps of one function, one for each signature.
  struct Steps {
    // By CallSignature::hash_of().
    std::unordered_multimap<std::size_t, std::shared_ptr<StepFunction>> known;
    std::shared_ptr<StepFunction> last;  // of them that was added
    std::size_t traces = 0;
    std::string reason;  // for the last trace, if it was not the first
  };

  std::shared_ptr<StepFunction> known_step(const Function& fn, std::span<const Nest> arguments,
                                           const function::TracingMode& mode)
      COHORT_REQUIRES(runtime_lock);
  void retire(Steps& steps, std::shared_ptr<StepFunction> step) COHORT_REQUIRES(runtime_lock);
  void count_trace(const Function& fn, const std::string& reason) COHORT_REQUIRES(runtime_lock);
  std::string reason_to_trace(const StepFunction& step) COHORT_REQUIRES(runtime_lock);
  void trace_first(StepFunction& step, const function::BoundArguments& bound);
  void add_elements(const IteratorHandle& iterator, const std::string& function,
                    std::vector<Fields>& elements, std::vector<Fields>& others);
  rpc::PeekReply peek(const IteratorHandle& iterator, const std::string& function);
  std::pair<std::uint32_t, WorkerPool::Link> ready_worker(const std::vector<std::uint64_t>& passed,
                                                          Deadline deadline);
  // `hash`: of the arguments of its call.
  void introduce(const Function& fn, std::size_t hash, const std::shared_ptr<StepFunction>& step);
  void announce(const StepFunction& step, std::size_t programs_before);
  void announce_to(std::uint32_t worker, const WorkerPool::Link& link, const StepFunction& step,
                   const rpc::FunctionBody& body);
  void check_bound(const StepFunction& step, const std::string& advice) const;

  RuntimeContext& context_;
  WorkerPool& pool_;
  DatasetPrograms& datasets_;
  // Whether a trace runs for a closure that was scheduled before.
  bool is_tracing_late_ COHORT_GUARDED_BY(runtime_lock) = false;
  std::unordered_map<const Function::State*, Steps> steps_ COHORT_GUARDED_BY(runtime_lock);
  // For workers that return. A function is added before the workers are asked to take it.
  std::vector<std::shared_ptr<StepFunction>> announced_ COHORT_GUARDED_BY(runtime_lock);
  // New calls do not use them any more, but closures still do.
  std::vector<std::weak_ptr<StepFunction>> retired_ COHORT_GUARDED_BY(runtime_lock);
};

}  // namespace cohort::coordinator
