// SPDX-License-Identifier: Apache-2.0
// The page's list of what a coordinator does not do, and how much of it is true here.
#include <cohort/cohort.h>
#include <cohort/testing/cluster/test_cluster.h>
#include <torch/torch.h>

#include <cstdio>
#include <string>
#include <type_traits>

// "ValueError if the strategy being used is not supported": other strategies do not compile.
static_assert(!std::is_constructible_v<cohort::ClusterCoordinator, cohort::MirroredStrategy&>);
static_assert(!std::is_constructible_v<cohort::ClusterCoordinator, cohort::Strategy&>);

// "Regular python function is not supported to be scheduled": a lambda is not, but a Function.
template <class F>
concept CanBeScheduled = requires(cohort::ClusterCoordinator coordinator, F fn) {
  coordinator.schedule(fn);
};
static_assert(CanBeScheduled<cohort::Function> && !CanBeScheduled<int (*)()>);

// "Calling next on a PerWorkerValues of iterator is unsupported."
template <class I>
concept HasNext = requires(I iterator) {
  iterator.get_next();
};
static_assert(HasNext<cohort::Iterator> && !HasNext<cohort::PerWorkerIterator>);

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments&) {
    const cohort::testing::TestCluster cluster({.workers = 2, .ps = 1});
    cohort::ParameterServerStrategy strategy(cluster.resolver());
    cohort::ClusterCoordinator coordinator(strategy);
    std::printf("strategy() is the strategy: %s\n",
                &coordinator.strategy() == &strategy ? "true" : "false");

    // "Currently, RemoteValue is not supported to be input args": unless the call says so.
    const cohort::Function doubles([](at::Tensor x) { return x + x; });
    const cohort::RemoteValue four = coordinator.schedule(doubles, torch::tensor(2));
    try {
      coordinator.schedule(doubles, four);
    } catch (const cohort::Error& error) {
      std::printf("a RemoteValue as an argument: %s\n",
                  std::string(cohort::name_of(error.code())).c_str());
    }
    const auto eight =
        coordinator.schedule(doubles, cohort::ScheduleOptions{.moves_remote_values = true}, four);
    std::printf("with moves_remote_values: %d\n", eight.fetch().tensor().item<int>());

    // "There is no support of worker assignment for function execution": there is.
    for (int i = 0; i < 3; ++i)
      coordinator.schedule(doubles, cohort::ScheduleOptions{.worker = 1}, torch::tensor(i));
    coordinator.join();
    std::printf("worker 1 ran %s\n",
                coordinator.statistics().closures.at(1) >= 3 ? "them" : "fewer");

    // "Function execution is not atomic, a function may be executed more than once": the updates
    // of a function count once in any case; worker_failure.cpp shows it.
    return 0;
  });
}
