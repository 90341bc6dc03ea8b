// SPDX-License-Identifier: Apache-2.0
// Adds what the replicas return: their numbers, 0 and 1.
#include <ATen/ops/scalar_tensor.h>

#include "page_text.h"

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments&) {
    cohort::MirroredStrategy strategy({"CPU:0", "CPU:1"});
    const auto step_fn = [] {
      const int i = cohort::get_replica_context()->replica_id_in_sync_group();
      return at::scalar_tensor(i, at::kInt);
    };
    const auto per_replica_result = strategy.run(step_fn);
    const at::Tensor total = strategy.reduce("SUM", per_replica_result);
    page::print(page::repr(total));
    return 0;
  });
}
