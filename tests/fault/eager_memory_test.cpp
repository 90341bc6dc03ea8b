// SPDX-License-Identifier: Apache-2.0
// An eager step that runs out of memory while its draw waits for a program. This program has its
// own operator new, which fails on request.
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/function/registry.h"
#include "cohort/testing/cluster/test_cluster.h"

namespace {

thread_local bool has_memory = true;

}  // namespace

void* operator new(std::size_t bytes) {
  void* const memory = has_memory ? std::malloc(bytes) : nullptr;
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return has_memory ? std::malloc(bytes) : nullptr;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace cohort {
namespace {

// The process ended: "terminate called after throwing an instance of 'std::bad_alloc'".
TEST(EagerMemory, ALackWhileADrawWaitsReachesTheCaller) {
  const testing::TestCluster cluster({.command = {COHORT_COMMAND, "server"}});
  ParameterServerStrategy strategy(cluster.resolver());
  ClusterCoordinator coordinator(strategy, {.run_eagerly = true});
  // The second element of the dataset has a shape that the lambda was not traced for: its draw
  // waits for a trace by this thread.
  bool is_exhausting = false;
  function::register_function("eager_memory_test.counted", [](std::vector<at::Tensor> in) {
    return std::vector<at::Tensor>{at::arange(in.at(0).item<std::int64_t>() + 1)};
  });
  const Dataset data = Dataset::range(2)
                           .map(Function::registered("eager_memory_test.counted"))
                           .map([&is_exhausting](at::Tensor x) {
                             has_memory = !is_exhausting;
                             return x.add(1);
                           });
  auto iterator = coordinator.create_per_worker_dataset(data).iterator();
  const Function step([](Iterator& it) { return it.next<at::Tensor>(); });
  coordinator.schedule(step, iterator);
  is_exhausting = true;
  EXPECT_THROW(coordinator.schedule(step, iterator), std::bad_alloc);
  has_memory = true;
}

}  // namespace
}  // namespace cohort
