// SPDX-License-Identifier: Apache-2.0
// Concatenates the values of all replicas along a dimension.
#include <ATen/ops/arange.h>

#include "page_text.h"

namespace {

// A value that is equal in all replicas.
cohort::PerReplica<cohort::Nest> distributed(cohort::Strategy& strategy, const at::Tensor& value) {
  return strategy.distribute_values_from_function(
      [&](const cohort::ValueContext&) { return cohort::Nest(value.clone()); });
}

void print_gathered(cohort::Strategy& strategy, const cohort::PerReplica<cohort::Nest>& values,
                    std::int64_t axis) {
  page::print(page::repr(strategy.gather(values, axis).tensor()));
}

}  // namespace

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments&) {
    cohort::MirroredStrategy two({"CPU:0", "CPU:1"});
    const at::Tensor column = at::arange(1, 3, at::kInt).reshape({2, 1});
    print_gathered(two, distributed(two, column), 0);

    cohort::MirroredStrategy four({"CPU:0", "CPU:1", "CPU:2", "CPU:3"});
    const at::Tensor single_tensor = at::arange(6, at::kInt).reshape({1, 2, 3});
    const auto distributed_values = distributed(four, single_tensor);
    for (const std::int64_t axis : {0, 1, 2}) print_gathered(four, distributed_values, axis);
    return 0;
  });
}
