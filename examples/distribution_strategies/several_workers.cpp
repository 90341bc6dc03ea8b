// SPDX-License-Identifier: Apache-2.0
// The page's programs for two replicas, each of which is now a process of its own. Where the page
// shows values of both replicas, each worker has its own; shared values are the same in both.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>

#include "page_text.h"

namespace {

// Each worker reads its part of each global batch.
void distribute_dataset(cohort::Strategy& strategy) {
  const std::int64_t global_batch_size = 2;
  const auto dataset = cohort::Dataset::range(4).batch(global_batch_size);
  const auto replica_fn = [](const at::Tensor& input) { return input * 2; };
  for (const auto& x : strategy.distribute_dataset(dataset))
    page::print(page::repr(strategy.run(replica_fn, x)[0]));
}

// The result is on each worker (the page: "this is CPU of each worker").
void gather(cohort::Strategy& strategy) {
  const auto distributed_values =
      strategy.distribute_values_from_function([](const cohort::ValueContext&) {
        return cohort::Nest(at::arange(1, 3, at::kInt).reshape({2, 1}));
      });
  page::print(page::repr(strategy.gather(distributed_values, 0).tensor()));
}

void reduce(cohort::Strategy& strategy) {
  const auto step_fn = [] {
    const int i = cohort::get_replica_context()->replica_id_in_sync_group();
    return at::scalar_tensor(i, at::kInt);
  };
  const auto per_replica_result = strategy.run(step_fn);
  page::print(page::repr(per_replica_result[0]));
  page::print(page::repr(strategy.reduce("SUM", per_replica_result)));
}

void all_reduce(cohort::Strategy& strategy) {
  const auto value_fn = [](const cohort::ValueContext& value_context) {
    return cohort::Nest(at::scalar_tensor(value_context.replica_id_in_sync_group, at::kInt));
  };
  const auto distributed_values = strategy.distribute_values_from_function(value_fn);
  const auto replica_fn = [](const at::Tensor& input) {
    return cohort::get_replica_context()->all_reduce("sum", input);
  };
  page::print(page::repr(strategy.run(replica_fn, distributed_values)[0]));
}

// A variable has one component in each worker, with the first worker's initial value.
void scope(cohort::Strategy& strategy, int worker) {
  const auto scope = strategy.scope();
  const auto mirrored_variable = cohort::get_strategy().variable("Variable", at::ones({}) + worker);
  page::print(page::repr(mirrored_variable));
}

}  // namespace

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments&) {
    cohort::MultiWorkerMirroredStrategy strategy({.devices = {"CPU:0"}});
    page::print("worker " + std::to_string(strategy.worker()));
    distribute_dataset(strategy);
    gather(strategy);
    reduce(strategy);
    all_reduce(strategy);
    scope(strategy, strategy.worker());
    return 0;
  });
}
