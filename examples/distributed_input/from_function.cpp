// SPDX-License-Identifier: Apache-2.0
// A function makes the dataset of each input pipeline; it shards, and batches for one replica.
#include <ATen/core/TensorBody.h>
#include <ATen/ops/ones.h>

#include <cstdio>

#include "numpy_text.h"

namespace {

constexpr std::int64_t kGlobalBatchSize = 16;

cohort::Dataset dataset_fn(const cohort::InputContext& input_context) {
  const std::int64_t batch_size = input_context.get_per_replica_batch_size(kGlobalBatchSize);
  return cohort::Dataset::from_tensors(cohort::Nest::tuple({at::ones({1}), at::ones({1})}))
      .repeat(64)
      .batch(16)
      .shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
      .batch(batch_size)
      .prefetch(2);  // two batches per device
}

}  // namespace

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments&) {
    cohort::MirroredStrategy mirrored_strategy;
    const auto dist_dataset = mirrored_strategy.distribute_datasets_from_function(&dataset_fn);
    // The guide stops here and prints nothing.
    for (const auto& element : dist_dataset) {
      std::printf("%s\n", guide::shape(element.value().items()[0].tensor()).c_str());
    }
    return 0;
  });
}
