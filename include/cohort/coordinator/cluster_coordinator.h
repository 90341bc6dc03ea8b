// SPDX-License-Identifier: Apache-2.0
// Schedules steps on the workers of a ParameterServerStrategy, and goes on if workers are lost and
// return (tf.distribute.coordinator.ClusterCoordinator).
//
//   ClusterCoordinator coordinator(strategy);
//   for (int i = 0; i < 1000; ++i) coordinator.schedule(step, iterator);
//   coordinator.join();
//
// For epochs over a dataset that ends:
//   const EpochResult result = coordinator.run_epoch(step, dataset);  // result.mean: the mean loss
//
// Training is asynchronous. Each worker computes gradients from the values that it read; meanwhile
// other workers may have updated the variables. Gradients are not averaged, and their age is not
// bounded. A parameter server applies the updates that a step sends to it together and at most
// once, but a reader may see the updates of one server before those of another.
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cohort/coordinator/epoch.h"
#include "cohort/core/bytes.h"
#include "cohort/core/clock.h"
#include "cohort/core/nest.h"
#include "cohort/data/dataset.h"
#include "cohort/data/element.h"
#include "cohort/function/function.h"
#include "cohort/strategy/parameter_server_strategy.h"

namespace cohort {

namespace coordinator {
class IteratorHandle;  // coordinator/datasets/iterator_handle.h
class RemoteState;     // coordinator/runtime/remote_state.h
class Runtime;
class WorkerDatasets;  // coordinator/datasets/worker_datasets.h
}  // namespace coordinator

// The future result of a scheduled function (tf's RemoteValue).
//
// A shared handle. Thread-safe. Destroying it does not cancel the work. Every fetch() returns the
// same tensors: clone() them before you write to them.
class COHORT_API RemoteValue {
 public:
  explicit RemoteValue(std::shared_ptr<coordinator::RemoteState> state)
      : state_(std::move(state)) {}
  // So that it can be a leaf of a nest for ClusterCoordinator::fetch().
  operator Nest() const;  // NOLINT: a remote value is a leaf

  // Waits for the function and returns its result, or throws its error; every call does so. Throws
  // deadline_exceeded if `deadline` passes, or if no closure of the coordinator ends for
  // CoordinatorOptions::progress_timeout. The error names the worker that runs the closure, or the
  // workers whose closures are missing; the closures continue.
  Nest fetch() const;
  Nest fetch(Deadline deadline) const;
  bool is_ready() const;

 private:
  std::shared_ptr<coordinator::RemoteState> state_;
};

// The iterators that one call of iterator() creates, one on each worker (tf's PerWorkerValues); an
// argument for schedule(). If a worker is lost and returns, its iterator starts again from its
// first element; only epochs continue where they were. After the last copy is destroyed, the
// workers destroy their iterators at the next iterator() call. Thread-safe.
class COHORT_API PerWorkerIterator {
 public:
  explicit PerWorkerIterator(std::shared_ptr<coordinator::IteratorHandle> handle)
      : handle_(std::move(handle)) {}
  operator Nest() const;  // NOLINT: it is an argument
  const ElementSpec& element_spec() const;

 private:
  std::shared_ptr<coordinator::IteratorHandle> handle_;
};

// A value that each worker has of its own (tf's PerWorkerValues), from create_per_worker_value().
// It is an argument for schedule(), run_epoch() and begin_epoch(): the step gets the value of the
// worker that runs it, as a tensor or a Nest. A worker that is lost and returns makes its value
// again. After the last copy is destroyed, the workers destroy their values at the next iterator()
// or create_per_worker_value() call. Thread-safe.
class COHORT_API PerWorkerValue {
 public:
  explicit PerWorkerValue(std::shared_ptr<coordinator::IteratorHandle> handle)
      : handle_(std::move(handle)) {}
  operator Nest() const;  // NOLINT: it is an argument
  const ElementSpec& spec() const;

 private:
  std::shared_ptr<coordinator::IteratorHandle> handle_;
};

// How one closure is scheduled.
struct ScheduleOptions {
  // Only this worker runs the closure; if it is lost, the closure waits until it returns. Such
  // closures do not count for CoordinatorOptions::queue_capacity. Unset: any worker.
  std::optional<int> worker = {};
  // A closure with a higher priority is sent before others that wait; of equal ones, the first
  // scheduled. A worker runs what it has in the order of receipt, so a closure may still run after
  // CoordinatorOptions::in_flight_per_worker earlier ones.
  std::int32_t priority = 0;
  // How long the closure may take from schedule() on; above 0. One that has not ended then throws
  // deadline_exceeded from fetch(), which names it and its worker, and the others go on; when all
  // have ended, join() and done() throw the first such error, unless they or schedule() have thrown
  // another one. A closure that waits then leaves the queue. One that runs is cancelled: it ends
  // before its next operator, and join() waits for that; its updates may have been made. Ignored
  // with run_eagerly, where a debugger may hold a step.
  std::optional<Duration> deadline = {};
  // Arguments may be RemoteValues, also inside of nests: schedule() waits for their results, as
  // fetch() does, and sends these. Otherwise it refuses them (invalid_argument), since each costs a
  // way over the coordinator.
  bool moves_remote_values = false;
};

// A dataset of which each worker has its own copy or part (tf's PerWorkerValues).
//
// The dataset and its iterators hold the C++ functions of its map() and filter(). If a worker meets
// an element of a shape for which such a function was not traced, the worker waits until it is, on
// the next thread that calls schedule(), join(), done(), fetch(), run_epoch() or Epoch::try_next().
// So what these functions capture by reference must outlive the iterators and must not change.
// CoordinatorOptions::max_traces_per_dataset_function limits these traces. Thread-safe.
class COHORT_API PerWorkerDataset {
 public:
  PerWorkerDataset(std::shared_ptr<coordinator::WorkerDatasets> datasets,
                   std::shared_ptr<coordinator::Runtime> runtime);
  // Creates a new iterator on every worker, for schedule(); drawing from it after its end is an
  // error. A lost worker gets its iterator when it returns. Blocks for one control call per worker,
  // each under ClusterOptions::timeout. Throws a worker's error if it cannot run the dataset;
  // failed_precondition inside a scheduled function; cancelled after the coordinator has ended.
  PerWorkerIterator iterator() const;
  const ElementSpec& element_spec() const;
  // The position in the pass that an epoch makes now: waits until the steps that were sent have
  // ended, and is after them, also if try_next() has not returned some yet. Without an epoch it is
  // the number of the next pass. Throws failed_precondition if several epochs run over the dataset
  // or its order may change (deterministic = false), and as try_next() does.
  Bytes save() const;
  // The next epoch goes on after the steps of each worker; EpochResult counts from there. Throws
  // data_loss for other bytes; failed_precondition while an epoch runs over the dataset, and with
  // run_eagerly inside of a pass; invalid_argument for a position in another dataset, or inside of
  // a pass of another number of workers.
  void restore(std::span<const std::byte> position) const;
  const std::shared_ptr<coordinator::WorkerDatasets>& datasets() const { return datasets_; }

 private:
  std::shared_ptr<coordinator::WorkerDatasets> datasets_;  // shared with the iterators
  std::shared_ptr<coordinator::Runtime> runtime_;
};

struct CoordinatorOptions {
  std::int64_t queue_capacity = 256 * 1024;  // closures that wait; 0: no limit
  // The bytes of the arguments of all closures that have not ended, since they are kept for
  // retries; 0: no limit. A closure with more is let in when no other one has arguments.
  std::int64_t queue_bytes = std::int64_t{1} << 30;
  // How many closures a worker runs at once, up to 64; useful if steps mostly wait for parameter
  // servers or data. LibTorch's threads of the worker are divided among them. Draws from one
  // iterator keep the order of the closures; reads and updates of variables have no order, as if
  // they were those of different workers. Registered functions must be thread-safe.
  std::int64_t closures_per_worker = 1;
  // Closures that a worker has at a time, at least closures_per_worker. 0: as many as keep it busy
  // for about a millisecond, at least 4 and at most 128.
  std::int64_t in_flight_per_worker = 0;
  // If one parameter server fails this often within transient_window, the coordinator throws the
  // last error; before, it retries the closures. 1 or less: it throws the first error. Unset: the
  // environment variable TF_COORDINATOR_IGNORE_TRANSIENT_PS_FAILURES, or 3.
  std::optional<int> max_transient_ps_failures = {};
  // The same for errors with the code deadline_exceeded, counted over all tasks. -1: a tenth of the
  // workers. Unset: the environment variable TF_COORDINATOR_IGNORE_TRANSIENT_TIMEOUTS, or -1.
  std::optional<int> max_transient_timeouts = {};
  Duration transient_window = std::chrono::minutes(10);
  // If a closure has been started this many times without success, the coordinator throws its last
  // error.
  std::int64_t max_attempts = 100;
  // A C++ function of a per-worker dataset's map() or filter() is traced again for each shape of
  // elements that a worker meets (PerWorkerDataset), at most this many times for each function and
  // dataset. The parts of one distribute_dataset() share the traces and this limit. One more shape
  // throws resource_exhausted, which names the shapes.
  std::int64_t max_traces_per_dataset_function = 1024;
  // A step is traced again for each shape of elements that it draws, at most this many times for
  // each of its signatures. One more shape throws resource_exhausted, which names the shapes.
  std::int64_t max_traces_per_step = 1024;
  // Worker i gets its first closure this long, times i, after the start; at most start_delay_max,
  // unless zero. Unset: the seconds in TF_COORDINATOR_SCHEDULE_START_DELAY and …_MAX, or zero.
  std::optional<Duration> start_delay = {};
  std::optional<Duration> start_delay_max = {};
  // schedule(), join(), fetch() and Epoch::try_next() throw deadline_exceeded if no closure ends
  // for this long. Zero: twice ClusterOptions::data_timeout, so that a worker that waits for a
  // parameter server which does not answer can report that server first.
  Duration progress_timeout = Duration::zero();
  // After each heartbeat all servers are asked for an answer at the same time, workers over both of
  // their connections. A worker that does not answer over one of them is treated as lost within two
  // heartbeats; a parameter server is only named in a warning. Zero: no heartbeats.
  Duration heartbeat = std::chrono::seconds(5);
  // Whether the chief's port answers HTTP requests for /metrics, as ServerOptions::serves_metrics
  // says. The environment variable COHORT_METRICS=1 sets this too.
  bool serves_metrics = false;
  // For a debugger: steps run in this process without a trace, one at a time, on the thread that
  // calls schedule(), so that breakpoints, item() and std::cout work in them. Variables stay on the
  // parameter servers; elements are those of worker 0. If no other task updates the variables, the
  // values are those of one worker. The workers stay idle. COHORT_RUN_EAGERLY=1 sets this too.
  bool run_eagerly = false;

  bool operator==(const CoordinatorOptions&) const = default;
};

// Counts since the coordinator started.
struct CoordinatorStatistics {
  // Closures that succeeded, by the worker that ran them; each closure counts once.
  std::vector<std::uint64_t> closures;
  std::uint64_t retries = 0;  // how often a closure was sent again after a lost worker or an error
  // Bytes of tensors between workers and parameter servers, as the workers report them, including
  // those of failed closures. With run_eagerly: between this process and the parameter servers.
  std::uint64_t pulled_bytes = 0;
  std::uint64_t pushed_bytes = 0;
  std::uint64_t traces = 0;  // programs made, including those that workers refused
  // Programs of per-worker datasets' functions that were made for elements of further shapes.
  std::uint64_t dataset_traces = 0;
  // Updates of retried closures that a server dropped because an earlier attempt had made them. A
  // lost worker reports nothing, so its own may be missing: Server::health() counts all.
  std::uint64_t pushes_dropped = 0;
  // Reports that were ignored because their closures had ended before, or had been retried.
  std::uint64_t duplicate_reports_dropped = 0;
  // Damaged frames, and intact messages that a correct worker never sends. Each closes its
  // connection; the worker then counts as lost.
  std::uint64_t broken_frames = 0;
  std::uint64_t protocol_errors = 0;
};

// A shared handle: a second one for the same strategy is the same coordinator. When the last handle
// is destroyed, the coordinator ends, cancels the closures that have not ended, and logs a warning.
// That takes a few seconds if it is just trying to reach a lost worker. Afterwards the strategy may
// get another coordinator. The strategy must outlive the coordinator. Calls inside a scheduled
// function throw failed_precondition. Thread-safe. Many methods because programs use all that
// workers do through it, as in tf.
class COHORT_API ClusterCoordinator {
 public:
  // Connects to every task. Throws unavailable, naming the missing tasks, if some do not answer
  // within ClusterOptions::timeout. If the strategy has a coordinator already, `options` must be
  // left out or be equal to that coordinator's; otherwise it throws failed_precondition.
  explicit ClusterCoordinator(ParameterServerStrategy& strategy, CoordinatorOptions options = {});

  ParameterServerStrategy& strategy() const;

  // Queues fn for any worker. Returns at once, except that it
  // - traces fn first if there is no program for this signature yet;
  // - waits while the queue is full, by number or by bytes, and while another thread is in
  //   schedule() or join().
  // Arguments may be tensors without an autograd graph, host values, nests of these,
  // PerWorkerIterator and PerWorkerValue. The closure gets the values that tensors have at this
  // call: they are copied, unless the caller moves the only handle in. Throws
  // - the first application error of earlier closures. Then this closure and all that wait are
  //   cancelled, and the coordinator can be used again. The end of a worker's data is such an
  //   error: repeat() the dataset, or read it to its end with run_epoch().
  // - deadline_exceeded, as join() does, if it waits and no closure ends for the progress timeout.
  // - resource_exhausted if its arguments are larger than the memory of this host.
  //
  // Closures of different workers run in any order, and so do those that a worker runs at once
  // (CoordinatorOptions::closures_per_worker). Otherwise a worker runs its closures in the order of
  // schedule(), except that a closure whose element needs another trace runs after those that the
  // worker has received already. If the order matters, call join() or fetch() in between. During an
  // epoch, a worker alternates between steps of the epoch and other closures.
  template <class... A>
  requires(!(std::same_as<std::remove_cvref_t<A>, ScheduleOptions> || ...)) RemoteValue
      schedule(const Function& fn, A&&... arguments) {
    return schedule_nests(fn, nests_of(std::forward<A>(arguments)...));
  }
  template <class... A>
  RemoteValue schedule(const Function& fn, ScheduleOptions options, A&&... arguments) {
    return schedule_nests(fn, nests_of(std::forward<A>(arguments)...), options);
  }
  RemoteValue schedule_nests(const Function& fn, std::vector<Nest> arguments,
                             const ScheduleOptions& options = {});

  // Calls schedule() for each list of arguments, in this order, with one lock and one wake-up for
  // all, so it is cheaper than many calls. Throws as schedule() does; if it refuses arguments, it
  // has queued none. If it throws an error of earlier closures, those of this call are cancelled.
  std::vector<RemoteValue> schedule_many(const Function& fn, std::vector<std::vector<Nest>> calls,
                                         const ScheduleOptions& options = {});

  // Waits until all scheduled closures have ended. Throws the first application error, once;
  // deadline_exceeded if no closure ends for CoordinatorOptions::progress_timeout, naming the
  // workers whose closures are missing.
  void join();
  // Like join(), but returns false after `timeout`. Throws deadline_exceeded as join() does, also
  // if it is called in a loop.
  bool join(Duration timeout);
  // Whether all closures have ended. Throws as join() does, but does not wait.
  bool done();

  // Returns the nest with each RemoteValue replaced by its result. Waits and throws as
  // RemoteValue::fetch() does, for the first value that has an error.
  Nest fetch(const Nest& values);

  // Calls fn once for each worker, with num_input_pipelines = number of workers and the worker's
  // own input_pipeline_id: shard() by it. Throws invalid_argument if fn creates variables. A
  // c10::Error that fn throws becomes an Error; other exceptions pass unchanged. Elements may have
  // any shapes (see PerWorkerDataset).
  PerWorkerDataset create_per_worker_dataset(const std::function<Dataset(const InputContext&)>& fn);
  // The same for a function that returns such a function, as distribute_datasets_from_function() of
  // ParameterServerStrategy does. It is called once.
  PerWorkerDataset create_per_worker_dataset(const std::function<DatasetFunction()>& fn);
  // Every worker reads the whole dataset, so each element is used once on every worker; if the
  // dataset ends, this is logged once. distribute_dataset() gives each worker a part instead.
  PerWorkerDataset create_per_worker_dataset(const Dataset& dataset);

  // Makes a value on each worker, for example a table that steps look into:
  //
  //   const PerWorkerValue own = coordinator.create_per_worker_value(
  //       Function([](at::Tensor worker) { return torch::full({1000}, 7).add(worker); }));
  //   coordinator.schedule(Function([](at::Tensor table) { return table.sum(); }), own);
  //
  // The Function is traced here for each worker, so it throws here what it throws for that worker's
  // index (int64 scalar). It may use operators on tensors, but no variables. Each worker runs it
  // once, before the first closure that has the value as an argument. If it fails only there, every
  // such closure fails with failed_precondition and the cause closure_input. Blocks and throws as
  // PerWorkerDataset::iterator() does.
  PerWorkerValue create_per_worker_value(const Function& fn);
  // Calls fn here, once for each worker, as create_per_worker_dataset() does, and sends the values.
  PerWorkerValue create_per_worker_value(const std::function<Nest(const InputContext&)>& fn);

  // Distributes the dataset to the workers, so that each element is used on one worker: by files or
  // by elements, as DatasetOptions::auto_shard_policy says. With fewer files than workers it
  // distributes by elements, whatever DatasetOptions::too_few_files says. The results for the last
  // few datasets are kept and returned again. Throws invalid_argument if elements may have a
  // different order on each worker (parallel calls with deterministic = false).
  PerWorkerDataset distribute_dataset(const Dataset& dataset);

  // Runs one epoch: `step` once for each element of each worker's dataset, exactly once even if
  // workers are lost and return. `step` takes the Iterator, from which it draws one element, and
  // then `arguments`, which may be those of schedule(). The end of one worker's data is no error:
  // the other workers continue. `dataset` is one of
  // - a PerWorkerDataset without repeat();
  // - a Dataset, which distribute_dataset() distributes. Create it once, before the loop over
  //   epochs. It needs at least as many elements (mini-batches) as there are workers:
  //   invalid_argument otherwise. create_per_worker_dataset() with shard() takes fewer.
  // Each epoch shuffles in a different order. Waits and throws as Epoch::try_next() does; throws
  // invalid_argument for a dataset without an end.
  //
  //   coordinator.run_epoch(step, data, {.on_step = [](const EpochStep& s) { … }});
  //
  // The options come before `arguments`, since after a parameter pack the compiler could not tell
  // options in braces from one more argument.
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

  // The same, step by step, for your own loop.
  template <class D, class... A>
  Epoch begin_epoch(const Function& step, const D& dataset, A&&... arguments) {
    return begin_epoch_nests(step, per_worker(dataset), nests_of(std::forward<A>(arguments)...));
  }
  Epoch begin_epoch_nests(const Function& step, const PerWorkerDataset& dataset,
                          std::vector<Nest> arguments, const EpochOptions& options = {});

  // Whether both handles are of the same coordinator.
  bool operator==(const ClusterCoordinator& other) const { return runtime_ == other.runtime_; }
  CoordinatorStatistics statistics() const;
  int num_workers() const;

 private:
  template <class... A>
  static std::vector<Nest> nests_of(A&&... arguments) {
    static_assert(
        (function::kIsArgument<A> && ...),
        "ClusterCoordinator::schedule(), run_epoch() and begin_epoch() take at::Tensor, "
        "numbers, bool, std::string, cohort::Nest, PerWorkerIterator and "
        "PerWorkerValue as arguments of the function; put several tensors into Nest::list({a, b})");
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
