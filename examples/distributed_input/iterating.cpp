// SPDX-License-Identifier: Apache-2.0
// Trains on a distributed dataset: first in a loop over all elements, then with an iterator and a
// fixed number of steps per epoch.
#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>

#include <cstdio>

#include "numpy_text.h"

namespace {

constexpr std::int64_t kGlobalBatchSize = 16;
constexpr int kEpochs = 10;
constexpr int kStepsPerEpoch = 5;

at::Tensor train_step(at::Tensor features, at::Tensor labels) { return labels - 0.3 * features; }

void print_loss(const at::Tensor& loss) { std::printf("Loss is  %s\n", guide::str(loss).c_str()); }

}  // namespace

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments&) {
    cohort::MirroredStrategy mirrored_strategy;
    const auto dataset =
        cohort::Dataset::from_tensors(cohort::Nest::tuple({at::ones({1}), at::ones({1})}))
            .repeat(100)
            .batch(kGlobalBatchSize);
    const auto dist_dataset = mirrored_strategy.distribute_dataset(dataset);

    for (const auto& x : dist_dataset) {
      print_loss(mirrored_strategy.run(&train_step, x));
    }

    for (int epoch = 0; epoch < kEpochs; ++epoch) {
      auto dist_iterator = dist_dataset.iterator();
      for (int step = 0; step < kStepsPerEpoch; ++step) {
        print_loss(mirrored_strategy.run(&train_step, dist_iterator.get_next()));
      }
    }
    return 0;
  });
}
