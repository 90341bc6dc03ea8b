// SPDX-License-Identifier: Apache-2.0
// A dataset on each worker, from which a scheduled function draws (create_per_worker_dataset()).
#include <cohort/cohort.h>
#include <cohort/testing/cluster/test_cluster.h>
#include <torch/torch.h>

#include <cstdio>

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments&) {
    const cohort::testing::TestCluster cluster({.workers = 1, .ps = 1});
    cohort::ParameterServerStrategy strategy(cluster.resolver());
    cohort::ClusterCoordinator coordinator(strategy);

    const cohort::Function worker_fn(
        [](cohort::Iterator& iterator) { return iterator.next<at::Tensor>(); });

    // It may also get the InputContext itself, and return the dataset.
    const auto per_worker_dataset_fn = [&] {
      return strategy.distribute_datasets_from_function([](const cohort::InputContext&) {
        return cohort::Dataset::from_tensor_slices(torch::tensor({3, 3, 3}));
      });
    };

    const cohort::PerWorkerDataset per_worker_dataset =
        coordinator.create_per_worker_dataset(per_worker_dataset_fn);
    const cohort::PerWorkerIterator per_worker_iter = per_worker_dataset.iterator();
    const cohort::RemoteValue remote_value = coordinator.schedule(worker_fn, per_worker_iter);
    std::printf("assert remote_value.fetch() == %d\n", remote_value.fetch().tensor().item<int>());
    return 0;
  });
}
