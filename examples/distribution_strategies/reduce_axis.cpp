// SPDX-License-Identifier: Apache-2.0
// Shows on which devices the results of replicas are, and what the axis of reduce() means.
#include <ATen/ops/arange.h>

#include "page_text.h"

namespace {

void print_devices(cohort::Strategy& strategy) {
  const auto on = [](const std::string& device) {
    page::print("# /job:localhost/replica:0/task:0/device:" + device);
  };
  for (const std::string& device : strategy.worker_devices()) on(device);
  on("CPU:0");  // of what reduce() returns
}

// The examples of a batch, in equal parts as far as possible; a loss of each is its number.
cohort::PerReplica<at::Tensor> losses(cohort::Strategy& strategy, std::int64_t examples) {
  const at::Tensor whole = at::arange(examples);
  return strategy.run([&] {
    const int replica = cohort::get_replica_context()->replica_id_in_sync_group();
    return whole.split(4)[static_cast<std::size_t>(replica)];
  });
}

}  // namespace

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments&) {
    cohort::MirroredStrategy strategy({"CPU:0", "CPU:1"});
    print_devices(strategy);

    const auto per_replica_result = losses(strategy, 8);
    page::print(page::repr(strategy.reduce("sum", per_replica_result)));
    page::print(page::repr(strategy.reduce("sum", per_replica_result, 0)));

    // A last batch of six examples, four in one replica and two in the other.
    const auto partial = losses(strategy, 6);
    try {
      strategy.reduce("sum", partial);
      return 1;
    } catch (const cohort::Error& error) {
      page::print(std::string(cohort::name_of(error.code())) + " without an axis");
    }
    page::print(page::repr(strategy.reduce(cohort::ReduceOp::mean, partial, 0)));
    return 0;
  });
}
