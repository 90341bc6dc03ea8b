// SPDX-License-Identifier: Apache-2.0
// Iterates over a dataset, and over the same dataset distributed to the replicas of a strategy.
#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>

#include <cstdio>

#include "numpy_text.h"

namespace {

constexpr std::int64_t kGlobalBatchSize = 16;

cohort::Dataset examples() {
  return cohort::Dataset::from_tensors(cohort::Nest::tuple({at::ones({1}), at::ones({1})}))
      .repeat(100)
      .batch(kGlobalBatchSize);
}

void not_distributed() {
  const cohort::Function train_step(
      [](at::Tensor features, at::Tensor labels) { return labels - 0.3 * features; });
  for (const cohort::Nest& inputs : examples()) {
    const cohort::Nest result = train_step.call(inputs.items());
    std::printf("%s\n", guide::str(result.tensor()).c_str());
  }
}

void distributed() {
  cohort::MirroredStrategy mirrored_strategy;
  const auto dist_dataset = mirrored_strategy.distribute_dataset(examples());
  // One global batch of data, fed to the model in one step.
  const cohort::Nest step = dist_dataset.iterator().get_next();
  std::printf("(%s, %s)\n", guide::repr(step.items()[0].tensor()).c_str(),
              guide::repr(step.items()[1].tensor()).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments&) {
    not_distributed();
    distributed();
    return 0;
  });
}
