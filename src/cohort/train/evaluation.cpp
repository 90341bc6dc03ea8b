// SPDX-License-Identifier: Apache-2.0
#include "cohort/train/evaluation.h"

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

}  // namespace internal

std::uint64_t Evaluation::run() const {
  for (const metrics::Metric& metric : metrics_) metric.reset();
  return pass_();
}

}  // namespace cohort
