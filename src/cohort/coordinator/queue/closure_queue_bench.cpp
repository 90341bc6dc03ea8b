// SPDX-License-Identifier: Apache-2.0
// Closures per second through the state machine alone: put, dispatch and end of each.
#include <benchmark/benchmark.h>

#include <vector>

#include "cohort/coordinator/queue/closure_queue.h"

namespace cohort::coordinator {
namespace {

// Ends dispatched closures in order.
class InstantWorkers {
 public:
  explicit InstantWorkers(std::size_t workers) : queue_({}, workers) {
    for (WorkerId worker = 0; worker < workers; ++worker) queue_.worker_ready(worker, actions_);
  }

  void put() {
    benchmark::DoNotOptimize(queue_.put(next_++, actions_));
    collect();
  }

  void end_all() {
    while (!running_.empty()) {
      ending_.swap(running_);
      for (const Ended& end : ending_) queue_.ended(end, {}, actions_);
      ending_.clear();
      collect();
    }
  }

 private:
  void collect() {
    for (const Action& action : actions_) {
      if (action.kind != Action::Kind::dispatch) continue;
      running_.push_back({action.closure, action.worker, Ended::Kind::ok, {}});
    }
    actions_.clear();
  }

  ClosureQueue queue_;
  Actions actions_;
  std::vector<Ended> running_;
  std::vector<Ended> ending_;
  ClosureId next_ = 0;
};

// Arguments: the number of workers, and of closures that are put before the first one ends.
void put_dispatch_end(benchmark::State& state) {
  InstantWorkers workers(static_cast<std::size_t>(state.range(0)));
  for (auto _ : state) {
    for (std::int64_t i = 0; i < state.range(1); ++i) workers.put();
    workers.end_all();
  }
  state.SetItemsProcessed(state.iterations() * state.range(1));
}
BENCHMARK(put_dispatch_end)
    ->ArgsProduct({{1, 2, 16, 256}, {4, 100000}})
    ->ArgNames({"workers", "ahead"});

// The cost of one error: all closures of a full queue are cancelled.
void cancel_full_queue(benchmark::State& state) {
  for (auto _ : state) {
    ClosureQueue queue({}, 1);
    Actions actions;
    for (ClosureId closure = 0; closure < 100000; ++closure) queue.put(closure, actions);
    queue.worker_ready(0, actions);
    queue.ended({0, 0, Ended::Kind::failed, Error(ErrorCode::invalid_argument, "E")}, {}, actions);
    queue.join(actions);
    queue.worker_lost(0, Error(ErrorCode::unavailable, "lost"), actions);
    benchmark::DoNotOptimize(queue.join(actions));
  }
  state.SetItemsProcessed(state.iterations() * 100000);
}
BENCHMARK(cancel_full_queue)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace cohort::coordinator
