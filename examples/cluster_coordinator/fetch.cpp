// SPDX-License-Identifier: Apache-2.0
// The result of a function in which a replica updates a variable (fetch()).
#include <cohort/cohort.h>
#include <cohort/testing/cluster/test_cluster.h>
#include <torch/torch.h>

#include <cstdio>

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments&) {
    const cohort::testing::TestCluster cluster({.workers = 1, .ps = 1});
    cohort::ParameterServerStrategy strategy(cluster.resolver());
    cohort::ClusterCoordinator coordinator(strategy);

    const auto dataset_fn = [](const cohort::InputContext&) {
      return cohort::Dataset::from_tensor_slices(torch::tensor({1, 1, 1}));
    };

    const cohort::Variable v = strategy.variable("v", torch::tensor(0));

    const cohort::Function worker_fn([&](cohort::Iterator& iterator) {
      const auto replica_fn = [&](const at::Tensor& x) {
        v.assign_add(x);
        return v.read();
      };
      return strategy.run(replica_fn, iterator.next<at::Tensor>())[0];
    });

    const auto distributed_dataset = coordinator.create_per_worker_dataset(dataset_fn);
    const auto distributed_iterator = distributed_dataset.iterator();
    const cohort::RemoteValue result = coordinator.schedule(worker_fn, distributed_iterator);
    std::printf("assert coordinator.fetch(result) == %d\n",
                coordinator.fetch(result).tensor().item<int>());

    // "If this is structure of RemoteValue …"; "if val is other types, return it as-is".
    const cohort::RemoteValue again = coordinator.schedule(worker_fn, distributed_iterator);
    const cohort::Nest both =
        coordinator.fetch(cohort::Nest::map({{"again", again}, {"seven", cohort::Nest(7)}}));
    COHORT_CHECK(
        both.entry("again").tensor().item<int>() == 2 && both.entry("seven").integer() == 7,
        cohort::ErrorCode::internal, "got ", both.entry("again").tensor());
    return 0;
  });
}
