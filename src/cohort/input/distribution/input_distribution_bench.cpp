// SPDX-License-Identifier: Apache-2.0
// The cost of distributing batches of 128 x 64 floats to replicas, next to the cost of making them.
// Items are global batches; the first benchmark only makes them.
#include <ATen/ops/ones.h>
#include <benchmark/benchmark.h>

#include "cohort/input/distributed_dataset.h"
#include "cohort/input/input_host.h"

namespace cohort {
namespace {

Dataset batches() { return Dataset::from_tensor_slices(at::ones({4096, 64})).repeat().batch(128); }

std::shared_ptr<const input::InputHost> mirrored(int replicas) {
  input::InputHost host{.strategy = "mirrored", .devices = {}};
  for (int i = 0; i < replicas; ++i) host.devices.push_back({.type = "CPU", .index = i});
  return std::make_shared<const input::InputHost>(host);
}

void make_batches(benchmark::State& state) {
  Iterator iterator = batches().iterator();
  for (auto _ : state) benchmark::DoNotOptimize(iterator.try_next());
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(make_batches);

// One batch is made once and returned again and again, to measure the cost of distribution alone.
void hand_on(benchmark::State& state) {
  Iterator iterator = Dataset::from_tensors(at::ones({128, 64})).repeat().iterator();
  for (auto _ : state) benchmark::DoNotOptimize(iterator.try_next());
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(hand_on);

void deal(benchmark::State& state, const Dataset& dataset, AutoShardPolicy policy) {
  DatasetOptions options;
  options.auto_shard_policy = policy;
  DistributedIterator iterator =
      DistributedDataset::from_dataset(mirrored(static_cast<int>(state.range(0))),
                                       dataset.with_options(options), {})
          .iterator();
  for (auto _ : state) benchmark::DoNotOptimize(iterator.try_next());
  state.SetItemsProcessed(state.iterations());
}

void make_and_deal(benchmark::State& state) { deal(state, batches(), AutoShardPolicy::automatic); }
BENCHMARK(make_and_deal)->ArgName("replicas")->Arg(1)->Arg(2)->Arg(4);

void deal_split(benchmark::State& state) {
  deal(state, Dataset::from_tensors(at::ones({128, 64})).repeat(), AutoShardPolicy::data);
}
BENCHMARK(deal_split)->ArgName("replicas")->Arg(1)->Arg(2)->Arg(4);

void deal_sized(benchmark::State& state) {
  deal(state, Dataset::from_tensors(at::ones({128, 64})).repeat(), AutoShardPolicy::off);
}
BENCHMARK(deal_sized)->ArgName("replicas")->Arg(1)->Arg(2)->Arg(4);

}  // namespace
}  // namespace cohort
