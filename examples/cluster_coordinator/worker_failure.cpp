// SPDX-License-Identifier: Apache-2.0
// Training goes on when a worker fails, with the others. A worker that recovers runs functions
// again, after its datasets were made again.
#include <cohort/cohort.h>
#include <cohort/testing/cluster/test_cluster.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <cstdio>

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments&) {
    cohort::testing::TestCluster cluster({.workers = 2, .ps = 1});
    cohort::ParameterServerStrategy strategy(cluster.resolver());
    cohort::ClusterCoordinator coordinator(strategy);
    const cohort::Variable sum = strategy.variable("sum", torch::tensor(0, torch::kLong));

    // Repeated indefinitely, as the page recommends, and a finite number of steps.
    const auto dataset = coordinator.create_per_worker_dataset([](const cohort::InputContext&) {
      return cohort::Dataset::from_tensor_slices(torch::tensor({2}, torch::kLong)).repeat();
    });
    const auto iterator = dataset.iterator();
    const cohort::Function step(
        [&](cohort::Iterator& it) { sum.assign_add(it.next<at::Tensor>()); });
    const auto run_steps = [&](int count) {
      for (int i = 0; i < count; ++i) coordinator.schedule(step, iterator);
      coordinator.join();
      return static_cast<long long>(sum.read().item<std::int64_t>());
    };

    std::printf("100 steps on two workers: %lld\n", run_steps(100));
    cluster.kill("worker:1");
    std::printf("100 more on one: %lld\n", run_steps(100));

    cluster.restart("worker:1");
    // Runs only there, so it waits for the worker.
    for (int i = 0; i < 10; ++i)
      coordinator.schedule(step, cohort::ScheduleOptions{.worker = 1}, iterator);
    coordinator.join();
    std::printf("10 more on the worker that is back: %lld\n", run_steps(0));

    // Also if it fails in the middle of functions, each of them counts once.
    for (int i = 0; i < 20'000; ++i) coordinator.schedule(step, iterator);
    cluster.kill("worker:0");
    coordinator.join();
    std::printf("20000 more, a worker killed meanwhile: %lld\n", run_steps(0));
    return 0;
  });
}
