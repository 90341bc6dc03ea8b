// SPDX-License-Identifier: Apache-2.0
// Runs several steps in one function. At the end of the data next() throws; with
// get_next_as_optional() the function can stop by itself.
#include <cstdio>

#include "numpy_text.h"

namespace {

constexpr std::int64_t kGlobalBatchSize = 4;
constexpr int kStepsPerLoop = 5;

at::Tensor step_fn(at::Tensor x) { return x; }

// Throws out_of_range in the fourth step.
void train_until_the_end(cohort::Strategy& strategy, cohort::DistributedIterator& iterator) {
  for (int step = 0; step < kStepsPerLoop; ++step) strategy.run(&step_fn, iterator.get_next());
}

void train(cohort::Strategy& strategy, cohort::DistributedIterator& distributed_iterator) {
  for (int step = 0; step < kStepsPerLoop; ++step) {
    const auto optional_data = distributed_iterator.get_next_as_optional();
    if (!optional_data.has_value()) break;
    const auto per_replica_results = strategy.run(&step_fn, optional_data.get_value());
    std::printf("%s\n", guide::tf_print(strategy.local_results(per_replica_results)).c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments&) {
    // The guide's second device is a GPU; the steps are the same.
    cohort::MirroredStrategy strategy({"CPU:0", "CPU:1"});
    const auto dist_dataset =
        strategy.distribute_dataset(cohort::Dataset::range(9).batch(kGlobalBatchSize));

    auto iterator = dist_dataset.iterator();
    try {
      train_until_the_end(strategy, iterator);
      return 1;
    } catch (const cohort::Error& error) {
      if (error.code() != cohort::ErrorCode::out_of_range) throw;
    }

    auto distributed_iterator = dist_dataset.iterator();
    train(strategy, distributed_iterator);
    return 0;
  });
}
