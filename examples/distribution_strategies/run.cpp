// SPDX-License-Identifier: Apache-2.0
// Runs a function in each replica: with a constant, with distributed values, and with an
// all-reduce.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>

#include "page_text.h"

namespace {

void constant_tensor_input(cohort::Strategy& strategy) {
  const at::Tensor tensor_input = at::full({}, 3.0, at::kFloat);
  const auto replica_fn = [](const at::Tensor& input) { return input * 2.0; };
  page::print(page::repr(strategy.run(replica_fn, tensor_input)));
}

void distributed_values_input(cohort::Strategy& strategy) {
  const auto value_fn = [](const cohort::ValueContext& value_context) {
    return cohort::Nest(value_context.num_replicas_in_sync);
  };
  const auto distributed_values = strategy.distribute_values_from_function(value_fn);
  const auto replica_fn2 = [](const cohort::Nest& input) {
    return cohort::Nest(input.integer() * 2);
  };
  // The number of each replica; the page prints one value, since its numbers are equal.
  const auto result = strategy.run(replica_fn2, distributed_values);
  const std::int64_t first = strategy.local_results(result).front().integer();
  page::print(page::repr(at::scalar_tensor(first, at::kInt)));
}

void all_reduce(cohort::Strategy& strategy) {
  const auto value_fn = [](const cohort::ValueContext& value_context) {
    return cohort::Nest(at::scalar_tensor(value_context.replica_id_in_sync_group, at::kInt));
  };
  const auto distributed_values = strategy.distribute_values_from_function(value_fn);
  const auto replica_fn = [](const at::Tensor& input) {
    return cohort::get_replica_context()->all_reduce("sum", input);
  };
  page::print(page::repr(strategy.run(replica_fn, distributed_values)));
}

}  // namespace

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments&) {
    cohort::MirroredStrategy strategy({"CPU:0", "CPU:1"});
    constant_tensor_input(strategy);
    distributed_values_input(strategy);
    all_reduce(strategy);
    return 0;
  });
}
