// SPDX-License-Identifier: Apache-2.0
// A custom training loop: distributes a dataset, runs a function in each replica, and reduces what
// the replicas return. Prints the total of each epoch.
#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

#include "page_text.h"

namespace {

constexpr int kEpochs = 2;

at::Tensor replica_fn(const at::Tensor& input) {
  // process input and return result
  return input.square().sum();
}

at::Tensor distribute_train_epoch(cohort::Strategy& my_strategy,
                                  const cohort::DistributedDataset& dataset) {
  at::Tensor total_result = at::zeros({}, at::kLong);
  for (const auto& x : dataset) {
    const auto per_replica_result = my_strategy.run(&replica_fn, x);
    total_result += my_strategy.reduce(cohort::ReduceOp::sum, per_replica_result);
  }
  return total_result;
}

}  // namespace

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments&) {
    cohort::MirroredStrategy my_strategy({"CPU:0", "CPU:1"});
    const auto scope = my_strategy.scope();
    const auto dist_dataset = my_strategy.distribute_dataset(cohort::Dataset::range(10).batch(4));
    for (int epoch = 0; epoch < kEpochs; ++epoch) {
      const at::Tensor train_result = distribute_train_epoch(my_strategy, dist_dataset);
      page::print(page::repr(train_result));
    }
    return 0;
  });
}
