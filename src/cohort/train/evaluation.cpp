// SPDX-License-Identifier: Apache-2.0
#include "cohort/train/evaluation.h"

#include "cohort/core/error.h"
#include "cohort/strategy/eval_mode.h"

namespace cohort {
namespace internal {

EvaluationScope::EvaluationScope() : eval_mode_(std::make_unique<EvalModeScope>()) {}
EvaluationScope::~EvaluationScope() = default;

std::uint64_t for_each_step(const DistributedDataset& data, const char* file, int line,
                            const std::function<void(const DistributedElement&)>& body) {
  DistributedIterator iterator = data.iterator(file, line);
  for (std::uint64_t steps = 0;; ++steps) {
    const DistributedOptional next = iterator.get_next_as_optional();
    if (!next.has_value()) return steps;
    body(next.get_value());
  }
}

void check_synchronous(const EvaluationOptions& options) {
  COHORT_CHECK(!options.reads_snapshot, ErrorCode::invalid_argument,
               "[train.evaluation] expected reads_snapshot only with a ClusterCoordinator, whose "
               "closures may train during an evaluation, got it with a synchronous strategy; leave "
               "it out: all steps read the values of now, which no step of training changes "
               "meanwhile");
}

// A step of an earlier pass may still run if that one has ended with an error.
std::uint64_t run_pass(ClusterCoordinator& coordinator, const Function& step,
                       const PerWorkerDataset& data, bool reads_snapshot,
                       const std::function<void()>& reset) {
  if (!reads_snapshot) coordinator.join();
  Epoch epoch = coordinator.begin_epoch_nests(step, data, {}, {.reads_snapshot = reads_snapshot});
  reset();
  while (epoch.try_next()) {
  }
  return epoch.result().steps;
}

}  // namespace internal

std::uint64_t Evaluation::run() const {
  return pass_([this] {
    for (const metrics::Metric& metric : metrics_) metric.reset();
  });
}

}  // namespace cohort
