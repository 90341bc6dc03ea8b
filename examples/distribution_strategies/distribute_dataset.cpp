// SPDX-License-Identifier: Apache-2.0
// Rebatches a dataset for two replicas, and runs a function on each mini-batch.
#include <ATen/TensorOperators.h>

#include "page_text.h"

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments&) {
    const std::int64_t global_batch_size = 2;
    // The page's devices are GPUs; passing them is optional.
    cohort::MirroredStrategy strategy({"CPU:0", "CPU:1"});
    const auto dataset = cohort::Dataset::range(4).batch(global_batch_size);
    const auto dist_dataset = strategy.distribute_dataset(dataset);
    const auto replica_fn = [](const at::Tensor& input) { return input * 2; };

    std::string result;
    for (const auto& x : dist_dataset)
      result += (result.empty() ? "" : ", ") + page::repr(strategy.run(replica_fn, x));
    page::print("[" + result + "]");
    return 0;
  });
}
