// SPDX-License-Identifier: Apache-2.0
// An all-reduce of float32 between two threads: what a program pays that copies through exchange(),
// and a plain memcpy of the same bytes, which no reduction in one thread can beat.
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <benchmark/benchmark.h>

#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/collective/group.h"
#include "cohort/collective/groups/exchange_only_group.h"
#include "cohort/core/error.h"

namespace cohort::collective {
namespace {

// The other members call the same until the first one leaves.
void run_members(benchmark::State& state, bool is_peer, int size,
                 const std::function<void(Group&, const at::Tensor&)>& call) {
  const InProcessWorkers workers(size);
  const auto group_of = [&](int rank) -> std::shared_ptr<Group> {
    std::shared_ptr<Group> group = workers.group(rank);
    return is_peer ? std::make_shared<ExchangeOnlyGroup>(std::move(group)) : group;
  };
  std::vector<std::thread> others;
  for (int rank = 1; rank < size; ++rank) {
    others.emplace_back([&, group = group_of(rank)] {
      const at::Tensor tensor = at::zeros({state.range(0) / 4});
      try {
        while (true) call(*group, tensor);
      } catch (const Error&) {  // the first member has left
      }
    });
  }
  {
    const std::shared_ptr<Group> group = group_of(0);
    const at::Tensor tensor = at::zeros({state.range(0) / 4});
    for (auto _ : state) call(*group, tensor);
  }
  for (std::thread& other : others) other.join();
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

void all_reduce(benchmark::State& state, bool is_peer, int size) {
  run_members(state, is_peer, size, [](Group& group, const at::Tensor& tensor) {
    group.all_reduce(tensor, ReduceOp::sum, Deadline());
  });
}

// The cost of a call without other members.
void BM_AllReduceOfOne(benchmark::State& state) { all_reduce(state, false, 1); }
void BM_AllReduce(benchmark::State& state) { all_reduce(state, false, 2); }
void BM_AllReduceByExchange(benchmark::State& state) { all_reduce(state, true, 2); }
// More members than this machine may have cores.
void BM_AllReduceOfFour(benchmark::State& state) { all_reduce(state, false, 4); }

void BM_Memcpy(benchmark::State& state) {
  const at::Tensor from = at::ones({state.range(0)}, at::kByte);
  const at::Tensor to = at::zeros({state.range(0)}, at::kByte);
  for (auto _ : state) {
    std::memcpy(to.data_ptr(), from.data_ptr(), from.nbytes());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

void BM_Barrier(benchmark::State& state) {
  run_members(state, false, 2, [](Group& group, const at::Tensor&) { group.barrier(Deadline()); });
}

void BM_Broadcast(benchmark::State& state) {
  run_members(state, false, 2, [](Group& group, const at::Tensor& tensor) {
    group.broadcast(tensor, 0, Deadline());
  });
}

void BM_AllGather(benchmark::State& state) {
  run_members(state, false, 2, [](Group& group, const at::Tensor& tensor) {
    benchmark::DoNotOptimize(group.all_gather(tensor, 0, Deadline()));
  });
}

void add_sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgName("bytes")->Arg(256)->Arg(1 << 10)->Arg(64 << 10)->Arg(1 << 20)->Arg(100 << 20);
  benchmark->UseRealTime();
}

BENCHMARK(BM_AllReduce)->Apply(add_sizes);
BENCHMARK(BM_AllReduceOfOne)->ArgName("bytes")->Arg(256)->Arg(1 << 10)->UseRealTime();
BENCHMARK(BM_AllReduceByExchange)->Apply(add_sizes);
BENCHMARK(BM_Memcpy)->Apply(add_sizes);
BENCHMARK(BM_AllReduceOfFour)->Apply(add_sizes);
BENCHMARK(BM_Broadcast)->Apply(add_sizes);
BENCHMARK(BM_AllGather)->Apply(add_sizes);
BENCHMARK(BM_Barrier)->ArgName("bytes")->Arg(0)->UseRealTime();

}  // namespace
}  // namespace cohort::collective
