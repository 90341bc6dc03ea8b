// SPDX-License-Identifier: Apache-2.0
// The guide's function of an input context where there are two workers, which are processes: each
// calls it for its own pipeline, which reads other batches than the other worker's.
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>

#include <cstdio>

#include "numpy_text.h"

namespace {

constexpr std::int64_t kGlobalBatchSize = 16;

cohort::Dataset dataset_fn(const cohort::InputContext& input_context) {
  const std::int64_t batch_size = input_context.get_per_replica_batch_size(kGlobalBatchSize);
  std::printf("pipeline %lld of %lld, %lld replicas, batches of %lld\n",
              static_cast<long long>(input_context.input_pipeline_id),
              static_cast<long long>(input_context.num_input_pipelines),
              static_cast<long long>(input_context.num_replicas_in_sync),
              static_cast<long long>(batch_size));
  return cohort::Dataset::from_tensors(cohort::Nest::tuple({at::ones({1}), at::ones({1})}))
      .repeat(64)
      .batch(16)
      .shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
      .batch(batch_size)
      .prefetch(2);  // two batches per device
}

// A dataset whose elements differ: each worker reads every other batch.
cohort::Dataset numbers(const cohort::InputContext& input_context) {
  return cohort::Dataset::range(14).batch(4).shard(input_context.num_input_pipelines,
                                                   input_context.input_pipeline_id);
}

}  // namespace

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments&) {
    cohort::MultiWorkerMirroredStrategy strategy({.devices = {"CPU:0"}});
    for (const auto& element : strategy.distribute_datasets_from_function(&dataset_fn))
      std::printf("%s\n", guide::shape(element[0].items()[0].tensor()).c_str());
    for (const auto& element : strategy.distribute_datasets_from_function(&numbers))
      std::printf("%s\n", guide::list(element[0].tensor()).c_str());
    return 0;
  });
}
