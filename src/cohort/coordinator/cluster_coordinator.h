// SPDX-License-Identifier: Apache-2.0
// Schedules steps on the workers of a ParameterServerStrategy and survives the loss of workers
// (tf.distribute.coordinator.ClusterCoordinator).
//
//   ClusterCoordinator coordinator(strategy);
//   for (int i = 0; i < 1000; ++i) coordinator.schedule(step, iterator);
//   coordinator.join();
//
// Of a dataset that ends, in epochs:
//   const EpochResult result = coordinator.run_epoch(step, dataset);  // result.mean: of the losses
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "cohort/coordinator/epoch.h"
#include "cohort/core/clock.h"
#include "cohort/core/nest.h"
#include "cohort/data/dataset.h"
#include "cohort/data/element.h"
#include "cohort/function/function.h"
#include "cohort/strategy/parameter_server_strategy.h"

namespace cohort {

namespace coordinator {
class IteratorHandle;  // coordinator/internal/iterator_handle.h
class RemoteState;     // coordinator/internal/remote_state.h
class Runtime;
class WorkerDatasets;  // coordinator/internal/worker_datasets.h
}  // namespace coordinator

// The result of a scheduled function, when it comes (tf's RemoteValue).
//
// A shared handle. Thread-safe. Dropping it does not cancel the work. Each fetch() gives the same
// tensors: clone() them before writing there.
class COHORT_API RemoteValue {
 public:
  explicit RemoteValue(std::shared_ptr<coordinator::RemoteState> state)
      : state_(std::move(state)) {}
  // To be put into a nest for ClusterCoordinator::fetch().
  operator Nest() const;  // NOLINT: a remote value is a leaf

  // Waits, then gives the function's result, or throws its error (as often as asked). Without a
  // deadline it gives up when no closure of the coordinator has ended for the data timeout:
  // deadline_exceeded, naming the worker that has its closure, or those that owe one. With one it
  // does so when that has passed, too; the work goes on.
  Nest fetch() const;
  Nest fetch(Deadline deadline) const;
  bool is_ready() const;

 private:
  std::shared_ptr<coordinator::RemoteState> state_;
};

// The iterators of one iterator() call, one on each worker (tf's PerWorkerValues); an argument for
// schedule(). After the last copy is destroyed, the workers destroy their iterators at the next
// iterator() call. Thread-safe.
class COHORT_API PerWorkerIterator {
 public:
  explicit PerWorkerIterator(std::shared_ptr<coordinator::IteratorHandle> handle)
      : handle_(std::move(handle)) {}
  operator Nest() const;  // NOLINT: an argument like others
  const ElementSpec& element_spec() const;

 private:
  std::shared_ptr<coordinator::IteratorHandle> handle_;
};

// A dataset of which each worker has its own copy or part (tf's PerWorkerValues).
//
// Holds the C++ functions of its map() and filter(), as its iterators do. A worker that meets an
// element of a shape for which they were not traced, as text of another length, asks for a program
// and waits: they are traced again, on the next thread in schedule(), join(), done(), fetch(),
// run_epoch() or Epoch::next(). So what they capture by reference must outlive the iterators, and
// what they capture must not change. CoordinatorOptions::max_traces_per_dataset_function bounds such traces.
// Thread-safe.
class COHORT_API PerWorkerDataset {
 public:
  PerWorkerDataset(std::shared_ptr<coordinator::WorkerDatasets> datasets,
                   std::shared_ptr<coordinator::Runtime> runtime);
  // Fresh iterators on every worker, for schedule(), whose end is an error there; a worker that is
  // away gets its own when it returns. Blocks for one control call a worker, under
  // ClusterOptions::timeout each. What a worker finds wrong with the dataset is thrown as it says
  // it; failed_precondition inside a scheduled function, cancelled after the coordinator's end.
  PerWorkerIterator iterator() const;
  const ElementSpec& element_spec() const;
  const std::shared_ptr<coordinator::WorkerDatasets>& datasets() const { return datasets_; }

 private:
  std::shared_ptr<coordinator::WorkerDatasets> datasets_;  // also its iterators'
  std::shared_ptr<coordinator::Runtime> runtime_;
};

struct CoordinatorOptions {
  std::size_t queue_capacity = 256 * 1024;  // closures that wait; 0: no bound
  // Closures on a worker at a time. 0: as many as keep it busy for about a millisecond, 4 to 128.
  std::size_t in_flight_per_worker = 0;
  // This many failures of one parameter server within the window are too many: the last one is
  // raised. Until then closures that met one run again. 1 or less: the first one is raised. Unset:
  // TF_COORDINATOR_IGNORE_TRANSIENT_PS_FAILURES, or 3.
  std::optional<int> max_transient_ps_failures = {};
  // The same for deadlines that passed on whatever task. -1: a tenth of the workers. Unset:
  // TF_COORDINATOR_IGNORE_TRANSIENT_TIMEOUTS, or -1.
  std::optional<int> max_transient_timeouts = {};
  Duration transient_window = std::chrono::minutes(10);
  // Starts of one closure; after these its last error is raised.
  std::uint32_t max_attempts = 100;
  // A C++ function of a per-worker dataset's map() or filter() is traced again for each shape of
  // elements that a worker meets (PerWorkerDataset): so often at most, each function for each
  // dataset; the parts of one that distribute_dataset() deals out count together, and share the
  // traces. Then such an element is resource_exhausted, naming the shapes.
  std::size_t max_traces_per_dataset_function = 1024;
  // Between two closures' ends in schedule(), join() and fetch(). Zero: twice
  // ClusterOptions::data_timeout, so that a worker that waits for a parameter server for so long
  // can say which.
  Duration progress_timeout = Duration::zero();
  // Workers are asked all at once whether they live, so often that any number of them that answer
  // no more is noticed within two heartbeats, and lost as when their connections break. Zero: never
  // asked.
  Duration heartbeat = std::chrono::seconds(5);
  // For a debugger: steps run in this process, on the thread that calls schedule(), one at a time
  // and as they are written, so that breakpoints, item() and std::cout work in them. Variables are
  // read from and updated on the parameter servers, and elements are those of worker 0, drawn here:
  // without other tasks' updates the values are those that one worker would compute. The workers
  // get nothing to do. Also set by COHORT_RUN_EAGERLY=1.
  bool run_eagerly = false;

  bool operator==(const CoordinatorOptions&) const = default;
};

struct CoordinatorStatistics {
  std::vector<std::uint64_t> closures;  // ended well, each counted once, by the worker that ran it
  std::uint64_t retries = 0;            // how often a closure was sent again, after a loss or error
  // Of tensors between workers and parameter servers, as the workers report them, also for closures
  // that failed. Of those that run eagerly: between this process and parameter servers.
  std::uint64_t pulled_bytes = 0;
  std::uint64_t pushed_bytes = 0;
  std::uint64_t traces = 0;  // programs made, those that workers refused too
  // Programs of per-worker datasets' functions, made for elements of other shapes.
  std::uint64_t dataset_traces = 0;
  // Of closures that were retried: updates that an earlier attempt had made, so that they counted
  // once. A parameter server may have dropped more of a lost worker, which reports nothing:
  // Server::health() has them.
  std::uint64_t pushes_dropped = 0;
  std::uint64_t duplicate_reports_dropped =
      0;  // reports of closures that had been retried or had ended before
  // From workers; both have ended the connections that they came over, as lost ones end.
  std::uint64_t broken_frames = 0;
  std::uint64_t protocol_errors = 0;  // reports that no worker sends which works right
};

// A shared handle: a second one for the same strategy is the same coordinator. The last one to go
// ends the coordinator and cancels what has not ended, with a warning, at once or after a few
// seconds where it is just trying to reach a lost worker; then the strategy may have another one.
// Thread-safe. The strategy must outlive it. Inside a scheduled function its calls are
// failed_precondition.
class COHORT_API ClusterCoordinator {
 public:
  // Connects to every task. Unavailable after the strategy's timeout, naming exactly the tasks that
  // are missing. Where the strategy has a coordinator already, `options` must be its own or none:
  // failed_precondition.
  explicit ClusterCoordinator(ParameterServerStrategy& strategy, CoordinatorOptions options = {});

  ParameterServerStrategy& strategy() const;

  // Queues fn for any worker and returns at once, but for a first trace of its signature, and while
  // the queue is full or another thread is in schedule() or join(): deadline_exceeded, as join()
  // throws it, when no closure has ended meanwhile for the data timeout. Arguments: tensors without
  // a graph, host values, nests of them, PerWorkerIterator; their values are those of this call,
  // whatever is written to the tensors later (they are copied, but where the caller has moved the
  // only handle in). Throws the first application error of what was scheduled before; then this
  // closure and all that waited are cancelled, and the coordinator is usable again.
  // The end of a worker's data is such an error: repeat() the dataset, or take it to its end with
  // run_epoch().
  // Closures have no order among workers. A worker runs its own as they were scheduled, but one
  // whose element needs another trace runs after those that are with the worker already: join() or
  // fetch() in between where the order matters. Beside an epoch, a worker takes one of the epoch's
  // steps and another closure in turn.
  template <class... A>
  RemoteValue schedule(const Function& fn, A&&... arguments) {
    return schedule_nests(fn, nests_of(std::forward<A>(arguments)...));
  }
  RemoteValue schedule_nests(const Function& fn, std::vector<Nest> arguments);

  // Waits until everything scheduled has ended. Throws the first application error, once.
  // deadline_exceeded when no closure has ended for the data timeout, naming the workers that owe
  // one.
  void join();
  // The same for at most `timeout`: false when that was too short. A loop of them ends as join().
  bool join(Duration timeout);
  // Whether everything has ended; throws as join().
  bool done();

  // The nest with each RemoteValue replaced by its result. Waits for each and throws as
  // RemoteValue::fetch() does: the first value's error, or deadline_exceeded after the data
  // timeout.
  Nest fetch(const Nest& values);

  // Calls fn once for each worker, with num_input_pipelines = workers and its own
  // input_pipeline_id: shard by it. It must not make variables: invalid_argument. LibTorch's
  // exceptions in it become an Error, any other passes unchanged. Elements may have any shapes: see
  // PerWorkerDataset.
  PerWorkerDataset create_per_worker_dataset(const std::function<Dataset(const InputContext&)>& fn);
  // The same dataset on every worker: each element comes once on each of them, which is logged once
  // where the dataset ends. distribute_dataset() gives each worker a part of it.
  PerWorkerDataset create_per_worker_dataset(const Dataset& dataset);

  // This dataset dealt out to the workers, so that each element comes on one of them: by files or
  // by elements, as its options say (auto_shard.h; with fewer files than workers by elements). The
  // last few datasets are remembered. invalid_argument where elements may come in another order on
  // each worker (parallel calls with deterministic = false).
  PerWorkerDataset distribute_dataset(const Dataset& dataset);

  // One epoch: runs `step` once for each element of each worker's dataset, every element exactly
  // once, also where workers are lost and return. `step` takes the Iterator, from which it draws
  // one element, and then `arguments`, as those of schedule(). Nothing is cancelled and nothing
  // fails when a worker's data ends: it has done its part. `dataset`: what
  // create_per_worker_dataset() gives, without repeat(); or a Dataset, which is
  // distribute_dataset() then: one with fewer elements (mini-batches) than workers is
  // invalid_argument, and create_per_worker_dataset() with shard() takes it. Each epoch of it
  // shuffles in another order. Waits and throws as Epoch::next(); invalid_argument for a dataset
  // without an end.
  //
  //   coordinator.run_epoch(step, data, {.on_step = [](const EpochStep& s) { … }});
  template <class D, class... A>
  requires(!(std::same_as<std::remove_cvref_t<A>, EpochOptions> || ...)) EpochResult
      run_epoch(const Function& step, const D& dataset, A&&... arguments) {
    return run_epoch_nests(step, per_worker(dataset), nests_of(std::forward<A>(arguments)...), {});
  }
  template <class D, class... A>
  EpochResult run_epoch(const Function& step, const D& dataset, EpochOptions options,
                        A&&... arguments) {
    return run_epoch_nests(step, per_worker(dataset), nests_of(std::forward<A>(arguments)...),
                           options);
  }
  EpochResult run_epoch_nests(const Function& step, const PerWorkerDataset& dataset,
                              std::vector<Nest> arguments, const EpochOptions& options);

  // The same step by step, for a loop of one's own.
  template <class D, class... A>
  Epoch begin_epoch(const Function& step, const D& dataset, A&&... arguments) {
    return begin_epoch_nests(step, per_worker(dataset), nests_of(std::forward<A>(arguments)...));
  }
  Epoch begin_epoch_nests(const Function& step, const PerWorkerDataset& dataset,
                          std::vector<Nest> arguments);

  CoordinatorStatistics statistics() const;
  std::uint32_t num_workers() const;

 private:
  template <class... A>
  static std::vector<Nest> nests_of(A&&... arguments) {
    static_assert((function::kIsArgument<A> && ...),
                  "ClusterCoordinator::schedule(), run_epoch() and begin_epoch() take at::Tensor, "
                  "numbers, bool, std::string, cohort::Nest and PerWorkerIterator as arguments of "
                  "the function; put several tensors into Nest::list({a, b})");
    std::vector<Nest> nests;
    if constexpr ((function::kIsArgument<A> && ...)) {
      nests.reserve(sizeof...(arguments));
      (nests.emplace_back(std::forward<A>(arguments)), ...);
    }
    return nests;
  }
  const PerWorkerDataset& per_worker(const PerWorkerDataset& dataset) { return dataset; }
  PerWorkerDataset per_worker(const Dataset& dataset) { return distribute_dataset(dataset); }

  std::shared_ptr<coordinator::Runtime> runtime_;
};

}  // namespace cohort
