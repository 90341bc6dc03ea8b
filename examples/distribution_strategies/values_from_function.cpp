// SPDX-License-Identifier: Apache-2.0
// Makes a value for each replica without a dataset.
#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>

#include "page_text.h"

namespace {

// A tuple of what the replicas have.
std::string tuple(const std::vector<cohort::Nest>& values, const std::string& between) {
  std::string text;
  for (const cohort::Nest& value : values) {
    text += (text.empty() ? "" : between) +
            (value.is_tensor() ? page::repr(value.tensor()) : cohort::to_string(value));
  }
  return "(" + text + ")";
}

void constant_value_per_replica(cohort::Strategy& strategy) {
  const auto value_fn = [](const cohort::ValueContext&) { return cohort::Nest(at::ones({})); };
  const auto distributed_values = strategy.distribute_values_from_function(value_fn);
  page::print(tuple(strategy.local_results(distributed_values), ",\n "));
}

void values_by_replica_id(cohort::Strategy& strategy) {
  const std::vector<double> array_value = {3, 2, 1};
  const auto value_fn = [&](const cohort::ValueContext& ctx) {
    return cohort::Nest(array_value[static_cast<std::size_t>(ctx.replica_id_in_sync_group)]);
  };
  const auto distributed_values = strategy.distribute_values_from_function(value_fn);
  std::string text;
  for (const cohort::Nest& value : strategy.local_results(distributed_values)) {
    const at::Tensor number = at::ones({}, at::kDouble) * value.real();
    text += (text.empty() ? "" : ", ") + guide::number(number, guide::Whole::scalar);
  }
  page::print("(" + text + ")");
}

void values_of_num_replicas(cohort::Strategy& strategy) {
  const auto value_fn = [](const cohort::ValueContext& ctx) {
    return cohort::Nest(ctx.num_replicas_in_sync);
  };
  const auto distributed_values = strategy.distribute_values_from_function(value_fn);
  page::print(tuple(strategy.local_results(distributed_values), ", "));
}

// The page uses TPUs, and prints nothing. Logical CPU devices share the memory of the host.
void values_on_devices(cohort::Strategy& strategy) {
  std::vector<at::Tensor> multiple_values;
  while (multiple_values.size() < strategy.worker_devices().size())
    multiple_values.push_back(at::ones({}));
  strategy.distribute_values_from_function([&](const cohort::ValueContext& ctx) {
    return cohort::Nest(multiple_values[static_cast<std::size_t>(ctx.replica_id_in_sync_group)]);
  });
}

}  // namespace

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments&) {
    cohort::MirroredStrategy strategy({"CPU:0", "CPU:1"});
    constant_value_per_replica(strategy);
    values_by_replica_id(strategy);
    values_of_num_replicas(strategy);
    values_on_devices(strategy);
    return 0;
  });
}
