// SPDX-License-Identifier: Apache-2.0
// A pass over data that is not trained with (keras's Model.evaluate()): a step that updates metrics
// runs over each row once, without gradients and with modules in eval mode.
//
//   const metrics::Accuracy accuracy;
//   const Evaluation validation(strategy, [&](const at::Tensor& x, const at::Tensor& y) {
//     accuracy.update({.labels = y, .predictions = net->forward(x)});
//   }, strategy.distribute_dataset(held_out.batch(256)), {.metrics = {accuracy}});
//   for (int epoch = 0; epoch < 10; ++epoch) {
//     …
//     validation.run();
//     std::printf("%.4f\n", accuracy.result());
//   }
#pragma once

#include <c10/core/GradMode.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/core/export.h"
#include "cohort/function/function.h"
#include "cohort/input/distributed_dataset.h"
#include "cohort/metrics/metrics.h"
#include "cohort/strategy/strategy.h"
#include "cohort/strategy/strategy_function.h"

namespace cohort {
struct EvaluationOptions;
}
namespace cohort::internal {

class EvalModeScope;  // strategy/eval_mode.h

// While it exists, no gradients, and eval mode for the modules that the step uses. Used only from
// its thread, inside of a step.
class COHORT_API EvaluationScope {
 public:
  EvaluationScope();
  ~EvaluationScope();
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  const c10::NoGradGuard no_grad_ = {};
  const std::unique_ptr<EvalModeScope> eval_mode_;
};

// A step in such a scope, which has the parameters of the step.
template <class R, class... A>
class EvaluationStep {
 public:
  explicit EvaluationStep(std::function<R(A...)> step) : step_(std::move(step)) {}
  R operator()(A... arguments) const {
    const EvaluationScope scope;
    return step_(std::forward<A>(arguments)...);
  }

 private:
  std::function<R(A...)> step_;
};

// Calls `body` for each step of a pass, also for a last one in which only some replicas have data;
// returns their number. The place in the program is for messages on other workers.
COHORT_API std::uint64_t for_each_step(const DistributedDataset& data, const char* file, int line,
                                       const std::function<void(const DistributedElement&)>& body);

// Throws invalid_argument for an option that needs a coordinator.
COHORT_API void check_synchronous(const EvaluationOptions& options);

// A pass on a coordinator. `reset` is called when no step of an earlier pass runs any more.
COHORT_API std::uint64_t run_pass(ClusterCoordinator& coordinator, const Function& step,
                                  const PerWorkerDataset& data, bool reads_snapshot,
                                  const std::function<void()>& reset);

}  // namespace cohort::internal

namespace cohort {

struct EvaluationOptions {
  // These begin each run() without rows: Metric::reset().
  std::vector<metrics::Metric> metrics = {};
  // Synchronous strategies: run the step as Strategy::function() does, which is faster, and takes
  // a trace for each shape.
  bool is_traced = false;
  // With a coordinator: the pass reads the values that variables have at one moment when it begins,
  // while others train. See EpochOptions::reads_snapshot, which also says what it costs.
  bool reads_snapshot = false;
};

// A step with its data. A value type; what the step captures by reference, the strategy and the
// coordinator must outlive it. run() is used from one thread at a time.
//
// Modules that Strategy::replicate() made are in eval mode from their first use in the step on,
// until its end; train() in the step stays in effect. For other modules call eval() yourself.
class COHORT_API Evaluation {
 public:
  // On a synchronous strategy. `step` takes an element as that of Strategy::run() does; what it
  // returns is dropped. Where workers have different numbers of rows, or none, the steps of those
  // that have no more get empty batches.
  template <class F>
  Evaluation(Strategy& strategy, F step, DistributedDataset data, EvaluationOptions options = {},
             const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : metrics_(std::move(options.metrics)) {
    internal::check_synchronous(options);
    auto checked = internal::EvaluationStep(std::function(std::move(step)));
    if (options.is_traced) {
      using Traced = StrategyFunction<decltype(checked)>;
      auto traced = std::make_shared<Traced>(strategy.function(std::move(checked), {}, file, line));
      pass_ = [traced, data = std::move(data), file, line](const Reset& reset) {
        reset();
        return internal::for_each_step(
            data, file, line, [&](const DistributedElement& element) { (*traced)(element); });
      };
    } else {
      pass_ = [&strategy, checked = std::move(checked), data = std::move(data), file,
               line](const Reset& reset) {
        reset();
        return internal::for_each_step(data, file, line, [&](const DistributedElement& element) {
          strategy.run(checked, element);
        });
      };
    }
  }

  // On parameter servers. `step` takes the Iterator of its worker, from which it draws one element.
  // `data`: a PerWorkerDataset without repeat(), or a Dataset that run_epoch() takes. A row counts
  // once, also if workers are lost and return.
  template <class F, class D>
  requires(std::same_as<D, PerWorkerDataset> || std::same_as<D, Dataset>)
      Evaluation(ClusterCoordinator& coordinator, F step, D data, EvaluationOptions options = {},
                 const char* file = __builtin_FILE(), int line = __builtin_LINE())
      : metrics_(std::move(options.metrics)) {
    const Function checked(internal::EvaluationStep(std::function(std::move(step))), {}, file,
                           line);
    pass_ = [&coordinator, checked, data = std::move(data),
             reads_snapshot = options.reads_snapshot](const Reset& reset) {
      if constexpr (std::same_as<D, Dataset>) {
        return internal::run_pass(coordinator, checked, coordinator.distribute_dataset(data),
                                  reads_snapshot, reset);
      } else {
        return internal::run_pass(coordinator, checked, data, reads_snapshot, reset);
      }
    };
  }

  // Resets the metrics, runs the step over all rows, and returns the number of steps. Where several
  // workers train together, all make this call. On parameter servers it first waits for all
  // scheduled closures, so that no update is missing; do not schedule training meanwhile. With
  // EvaluationOptions::reads_snapshot it waits only for those that run, and you may.
  //
  // Throws what Strategy::run() and DistributedIterator throw, or ClusterCoordinator::join() and
  // run_epoch(). The metrics then have a part of the rows.
  std::uint64_t run() const;

 private:
  using Reset = std::function<void()>;
  std::vector<metrics::Metric> metrics_;
  std::function<std::uint64_t(const Reset& reset)> pass_;
};

}  // namespace cohort
