// SPDX-License-Identifier: Apache-2.0
// The coordinator's threads and sockets around the closure queue.
//
// Whoever makes an event happen (a caller, a channel's thread, a recovery thread) feeds it to the
// queue under the lock and carries out the actions; there is no thread of its own to wake on the
// way of a closure.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/coordinator/detail/closure_queue.h"
#include "cohort/coordinator/internal/distributed_datasets.h"
#include "cohort/coordinator/internal/eager_steps.h"
#include "cohort/coordinator/internal/epoch_run.h"
#include "cohort/coordinator/internal/health_listener.h"
#include "cohort/coordinator/internal/in_flight_window.h"
#include "cohort/coordinator/internal/iterator_handle.h"
#include "cohort/coordinator/internal/kept_arguments.h"
#include "cohort/coordinator/internal/remote_state.h"
#include "cohort/coordinator/internal/sent_closures.h"
#include "cohort/coordinator/internal/step_function.h"
#include "cohort/core/detail/mutex.h"
#include "cohort/rpc/detail/error_record.h"
#include "cohort/rpc/detail/messages.h"
#include "cohort/variable/detail/hyperparameter.h"

namespace cohort::coordinator {

// Throws failed_precondition, naming the call, where a function is being traced, or runs eagerly,
// on this thread: it would wait for itself.
void check_outside_step(std::string_view call);
// Replaces arguments that were computed from read() of variables of this process by their values,
// since no step trains those. Returns whether there were any.
bool take_values_of_reads(std::vector<Nest>& arguments, const function::BoundArguments& bound);
// Throws invalid_argument for tensors that cannot travel, whose gradients would stay behind, or
// that have no current value, as tensor() of the variables of `home`.
void check_tensors(const detail::ParameterServerHome& home, const Function& fn,
                   std::span<const Nest> arguments, const function::BoundArguments& bound);

// Thread-safe.
class Runtime final : public std::enable_shared_from_this<Runtime> {
 public:
  Runtime(ParameterServerStrategy& strategy, CoordinatorOptions options,
          CoordinatorNumbers numbers);
  ~Runtime();
  void start();
  // Ends everything: what has not ended is cancelled. After it no thread of the coordinator's runs;
  // it waits for an attempt to connect at most, a few seconds. Idempotent.
  void stop() noexcept;
  // For its successor; after stop().
  CoordinatorNumbers numbers();

  ParameterServerStrategy& strategy() const { return strategy_; }
  const CoordinatorOptions& options() const { return options_; }
  RemoteValue schedule(const Function& fn, std::vector<Nest> arguments);
  // False when `timeout` was too short. Throws deadline_exceeded, with one or without, when nothing
  // has ended for the data timeout.
  bool join(std::optional<Duration> timeout);
  bool done();
  void wait_for(const RemoteState& state, Deadline deadline);
  DistributedDatasets& datasets() { return datasets_; }
  // `epoch`: for that pass over the data alone.
  std::shared_ptr<IteratorHandle> create_iterator(std::shared_ptr<WorkerDatasets> datasets,
                                                  std::optional<std::uint64_t> epoch);
  // The last copy of its handle has gone, perhaps under a lock: what the datasets hold is the
  // user's, and goes later.
  void release_iterator(std::uint64_t id, std::shared_ptr<WorkerDatasets> datasets) noexcept;
  // See Epoch.
  std::shared_ptr<EpochRun> begin_epoch(const Function& fn,
                                        const std::shared_ptr<WorkerDatasets>& datasets,
                                        std::vector<Nest> arguments);
  std::optional<EpochStep> next_step(const std::shared_ptr<EpochRun>& epoch);
  // `why`: what next_step() throws then; nothing: nobody calls it again.
  void give_up(EpochRun& epoch, const std::optional<Error>& why = std::nullopt) noexcept;
  CoordinatorStatistics statistics() const;
  // As the coordinator's own address answers it.
  TaskHealth health() const;
  // The closures that have not ended, and what is kept for each.
  std::size_t pending_count() const;

 private:
  struct Pending {
    std::shared_ptr<StepFunction> function;
    std::vector<Nest> resources;
    internal::KeptArguments arguments;
    std::vector<at::Tensor> captured;  // inputs behind the arguments
    std::uint64_t captured_at = 0;     // hyperparameter_time()
    CountedUpdates counted;            // what the captured ones have taken
    std::weak_ptr<RemoteState> result;
    // What its worker has reported: the elements that the traced program must fit, or outputs,
    // until the queue's word.
    std::vector<at::Tensor> reported;
    std::uint32_t worker = 0;  // for which it was dispatched last
    std::uint64_t epoch = 0;   // over which of its connections; 0: not yet
    bool waits_for_program = false;
    bool is_retried = false;  // an earlier attempt may have pushed its updates
    std::uint32_t runs = 0;   // attempts that may have made them
    EpochPlace in_epoch;
  };
  struct Worker {
    ClusterConnection::WorkerLink link;
    internal::InFlightWindow window;
    internal::SentClosures sent;  // over this connection
    bool is_ready = false;
    std::uint64_t lost_epoch = 0;  // the newest connection known to be broken
    std::vector<ClosureId> outbox;
    std::vector<std::uint64_t> cancels;
    bool is_sending = false;
    bool needs_recovery = false;
    std::thread recovery;
    std::string refusal;         // why it could not be used the last time; empty when it is ready
    std::uint64_t closures = 0;  // ended well
    std::uint64_t times_lost = 0;
  };

  // Of an argument while it is scheduled: in its nest, and among the inputs.
  static constexpr std::size_t kArgumentHandles = 2;
  // Whether a worker that is busy with short closures may get what is for it later, with more.
  enum class Flush : std::uint8_t { all, batched };

  // Callers.
  class FetcherCount;
  class Turn;
  // How a caller waits.
  struct Wait {
    std::string_view call;  // for the error
    Deadline deadline = {};
    Flush last = Flush::all;
    const RemoteState* awaited = nullptr;
    const EpochRun* epoch = nullptr;
  };
  void check_running(std::string_view call) const;
  RemoteValue run_eagerly(const Function& fn, const std::vector<Nest>& arguments);
  void count_eager_end(const std::optional<Error>& error, const VariableTraffic& traffic)
      COHORT_REQUIRES(mutex_);
  void raise_eager_error();
  void check_iterators(const function::BoundArguments& bound) const;
  Verdict settle(const Wait& how, const std::function<Verdict(Actions&)>& ask);
  ClosureId renumber(ClosureId waiting) COHORT_REQUIRES(mutex_);
  void forget_refused(ClosureId closure);
  Deadline progress_deadline() const COHORT_REQUIRES(mutex_);
  [[noreturn]] void throw_stalled(const Wait& how) const COHORT_REQUIRES(mutex_);
  // The worker that has the closure of `awaited`, or else those that owe an end or are away; and
  // how much is open.
  std::string debtors(const RemoteState* awaited = nullptr) const COHORT_REQUIRES(mutex_);
  std::string holder_of(const RemoteState& awaited) const COHORT_REQUIRES(mutex_);
  // Ends everything for good when the error says that another coordinator has this one's place;
  // says whether it does.
  bool gives_way(const Error& error);
  void warn_of_what_is_left() COHORT_REQUIRES(mutex_);

  // Epochs (runtime_epochs.cpp).
  std::optional<EpochStep> take_finished(EpochRun& epoch, bool& wants_steps);
  std::size_t open_steps_max(const EpochRun& epoch, std::size_t worker) const
      COHORT_REQUIRES(mutex_);
  Verdict ask_for_step(const std::shared_ptr<EpochRun>& epoch,
                       const std::shared_ptr<StepFunction>& step, Actions& actions)
      COHORT_REQUIRES(mutex_);
  Verdict put_step(const std::shared_ptr<EpochRun>& epoch, std::uint32_t worker,
                   const std::shared_ptr<StepFunction>& step, Actions& actions)
      COHORT_REQUIRES(mutex_);
  std::optional<EpochStep> end_of(EpochRun& epoch);
  void withdraw_steps(EpochRun& epoch, Actions& actions) COHORT_REQUIRES(mutex_);
  bool capture_for_step(Pending& pending) COHORT_REQUIRES(mutex_);
  static bool add_captured(Pending& pending);
  void drop_refused(const Actions& refused) COHORT_REQUIRES(mutex_);
  void resolve_step(Pending& pending, const std::optional<Error>& error) COHORT_REQUIRES(mutex_);
  // Returns false, and the epoch has an error, if the worker may yield other elements from now on.
  bool check_order(EpochRun& epoch, std::uint32_t worker) const COHORT_REQUIRES(mutex_);
  void check_orders(std::uint32_t lost_worker) COHORT_REQUIRES(mutex_);
  void raise_eager_error(EpochRun& epoch);
  std::optional<EpochStep> next_eager_step(EpochRun& epoch);
  std::string debtors_of(const EpochRun& epoch) const COHORT_REQUIRES(mutex_);
  bool is_over() const { return is_stopping_ || is_replaced_; }

  // Functions.
  // Of one function: a step for each signature, and how often it was traced in all.
  struct Steps {
    std::vector<std::shared_ptr<StepFunction>> known;
    std::size_t traces = 0;
    std::string reason;  // for the last trace but the first
  };
  void count_trace(const Function& fn, const std::string& reason) COHORT_REQUIRES(mutex_);
  std::vector<std::shared_ptr<StepFunction>> needed_steps() COHORT_REQUIRES(mutex_);
  std::shared_ptr<StepFunction> step_for(const Function& fn, std::span<const Nest> arguments);
  std::shared_ptr<StepFunction> known_step(const Function& fn, std::span<const Nest> arguments,
                                           const function::TracingMode& mode)
      COHORT_REQUIRES(mutex_);
  std::string reason_to_trace(const StepFunction& step) COHORT_REQUIRES(mutex_);
  void retire(Steps& steps, const std::shared_ptr<StepFunction>& known) COHORT_REQUIRES(mutex_);
  void trace_first(StepFunction& step, const function::BoundArguments& bound);
  void add_elements(const IteratorHandle& iterator, const std::string& function,
                    std::vector<Fields>& elements, std::vector<Fields>& others);
  void introduce(const Function& fn, const std::shared_ptr<StepFunction>& step);
  void announce(const StepFunction& step);
  void announce_to(std::uint32_t worker, const ClusterConnection::WorkerLink& link,
                   const rpc::FunctionBody& body);
  void trace_waiting();
  bool has_captured(ClosureId closure) COHORT_REQUIRES(mutex_);
  void trace_one(ClosureId closure);
  void trace_for(StepFunction& step, const std::vector<at::Tensor>& drawn);
  rpc::PeekReply peek(const IteratorHandle& iterator, const std::string& function);
  // Any worker that can answer over a connection newer than that of `passed_epochs`, waiting for
  // one when all are away.
  std::pair<std::uint32_t, ClusterConnection::WorkerLink> ready_worker(
      const std::vector<std::uint64_t>& passed_epochs, Deadline deadline);

  // Datasets' functions. A question of a worker whose pipeline waits for a program.
  struct ProgramQuestion {
    std::uint32_t worker = 0;
    rpc::ProgramRequest request;
  };
  void on_program_request(std::uint32_t worker, rpc::Frame frame);
  void answer_program_requests();
  void answer(const ProgramQuestion& question);
  std::vector<std::pair<std::shared_ptr<rpc::Requester>, std::uint64_t>> receivers(
      const ProgramQuestion& question, const IteratorHandle& iterator, bool is_new);
  rpc::Frame call_and_trace(rpc::Requester& worker, rpc::Frame request, Deadline& deadline,
                            const std::string& operation);

  // Actions. carry_out() needs the lock, flush() must not have it.
  void carry_out(Actions& actions) COHORT_REQUIRES(mutex_);
  Actions take_actions() COHORT_REQUIRES(mutex_) { return std::move(spare_actions_); }
  void give_back(Actions actions) COHORT_REQUIRES(mutex_);
  void admit(ClosureId closure, Pending&& pending) COHORT_REQUIRES(mutex_);
  // out_of_order: it goes out, but its epoch has an error now; refused: likewise, and it stays
  // here.
  enum class Dispatched : std::uint8_t { well, out_of_order, refused };
  Dispatched dispatch(ClosureId closure, std::uint32_t worker, TimePoint now)
      COHORT_REQUIRES(mutex_);
  void resolve(ClosureId closure, const std::optional<Error>& error, TimePoint now)
      COHORT_REQUIRES(mutex_);
  // Its outbox, which is empty afterwards, or unchanged where it throws.
  rpc::RunBatch make_batch(Worker& worker) COHORT_REQUIRES(mutex_);
  bool can_wait(const Worker& worker) const COHORT_REQUIRES(mutex_);
  void flush(Flush how = Flush::all);
  class Sending;
  void flush_worker(std::uint32_t worker);

  void count_end(const std::optional<Error>& error, TimePoint now) COHORT_REQUIRES(mutex_);
  // What has not been sent to it stays here, as it is lost.
  void empty_outbox(Worker& worker) COHORT_REQUIRES(mutex_);

  // Workers' words.
  void on_frame(std::uint32_t worker, std::uint64_t epoch, rpc::Frame frame);
  // The error with which the connection must end, where the worker says what cannot be.
  std::optional<Error> on_end(std::uint32_t worker, rpc::ClosureEnd end, TimePoint now,
                              Actions& actions) COHORT_REQUIRES(mutex_);
  void on_lost(std::uint32_t worker, std::uint64_t epoch, const Error& reason);
  std::string what_follows_the_loss(std::uint32_t worker) const COHORT_REQUIRES(mutex_);
  void start_recovery(std::uint32_t worker) COHORT_REQUIRES(mutex_);
  void recover(std::uint32_t worker);
  void drop_link(std::uint32_t worker);
  void watch();
  // To one worker, over the connection of this epoch.
  struct HealthCall {
    std::uint64_t epoch = 0;
    bool is_silent = false;
  };
  std::vector<HealthCall> ask_workers();
  bool set_up(std::uint32_t worker, const ClusterConnection::WorkerLink& link);
  // What a worker should have; nothing: it has had that of this version.
  struct Furnishing {
    std::uint64_t version = 0;
    std::vector<std::shared_ptr<StepFunction>> functions;
    std::vector<std::uint64_t> released;  // iterators that it has and nobody uses
    std::vector<std::shared_ptr<IteratorHandle>> iterators;
  };
  void furnish(std::uint32_t worker, const ClusterConnection::WorkerLink& link,
               const Furnishing& furnishing);
  void make_ready(std::uint32_t worker, const ClusterConnection::WorkerLink& link, Actions& actions)
      COHORT_REQUIRES(mutex_);

  ParameterServerStrategy& strategy_;
  // A channel's thread may hold the last reference to this object, after the strategy has gone.
  const std::shared_ptr<detail::ParameterServerHome> home_;
  ClusterConnection& connection_;
  const CoordinatorOptions options_;
  const Duration data_timeout_;
  DistributedDatasets datasets_;
  // One caller in schedule or join at a time (tf's put/wait lock).
  Mutex turn_mutex_;
  Condition turn_changed_;
  bool is_turn_taken_ COHORT_GUARDED_BY(turn_mutex_) = false;
  Mutex tracing_;  // Held while the user's function runs: never asked for by workers' threads.
  EagerSteps eager_steps_ COHORT_GUARDED_BY(tracing_);
  mutable Mutex mutex_;
  Condition changed_;
  Condition stopped_;  // for those who are not to wake at every end of a closure
  ClosureQueue queue_ COHORT_GUARDED_BY(mutex_);
  // A closure gets a program after its schedule().
  bool is_tracing_late_ COHORT_GUARDED_BY(mutex_) = false;
  CoordinatorNumbers numbers_ COHORT_GUARDED_BY(mutex_);
  std::unordered_map<ClosureId, Pending> pending_ COHORT_GUARDED_BY(mutex_);
  // Memory to use again: it comes from callers' threads and goes on channels', which allocators pay
  // for.
  std::vector<std::unordered_map<ClosureId, Pending>::node_type> spare_pending_
      COHORT_GUARDED_BY(mutex_);
  Actions spare_actions_ COHORT_GUARDED_BY(mutex_);
  std::vector<Worker> workers_ COHORT_GUARDED_BY(mutex_);
  std::vector<std::uint32_t> to_flush_ COHORT_GUARDED_BY(mutex_);
  std::unordered_map<const Function::State*, Steps> steps_ COHORT_GUARDED_BY(mutex_);
  // What a worker that returns gets. A function is here before the workers are asked to take it.
  std::vector<std::shared_ptr<StepFunction>> announced_ COHORT_GUARDED_BY(mutex_);
  // Those that no call uses again, for the closures that they still have.
  std::vector<std::weak_ptr<StepFunction>> retired_ COHORT_GUARDED_BY(mutex_);
  // Counts announcements and iterators, so that a worker that returns misses none.
  std::uint64_t version_ COHORT_GUARDED_BY(mutex_) = 0;
  std::unordered_map<std::uint64_t, std::weak_ptr<IteratorHandle>> iterators_
      COHORT_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<EpochRun>> epochs_ COHORT_GUARDED_BY(mutex_);
  std::vector<ProgramQuestion> program_requests_ COHORT_GUARDED_BY(mutex_);
  std::atomic<bool> has_program_requests_{false};  // written under the mutex
  // From when on progress_deadline() counts: the last end of a closure, or when the wait for one
  // began. Not ends_.last, which is that of an end alone.
  TimePoint last_progress_ COHORT_GUARDED_BY(mutex_);
  int fetchers_ COHORT_GUARDED_BY(mutex_) = 0;  // callers that wait for one closure's result
  CoordinatorStatistics totals_ COHORT_GUARDED_BY(mutex_);
  // Of closures, but for those that ended well, which are their workers'.
  struct Ends {
    std::uint64_t failed = 0;
    std::uint64_t cancelled = 0;
    std::optional<TimePoint> last;  // of any closure
  };
  Ends ends_ COHORT_GUARDED_BY(mutex_);
  rpc::ErrorRecord errors_;
  // What anybody may read. Who knows the connection's incarnation may do what the coordinator may.
  const std::uint64_t public_incarnation_ = rpc::new_incarnation();
  const TimePoint started_ = Clock::system().now();
  std::optional<Error> eager_error_ COHORT_GUARDED_BY(mutex_);  // the first one, until it is raised
  // Of iterators; apart, because the last copy of one may go while the other lock is held.
  Mutex released_mutex_;
  std::vector<std::uint64_t> released_ COHORT_GUARDED_BY(released_mutex_);
  std::vector<std::shared_ptr<WorkerDatasets>> released_datasets_
      COHORT_GUARDED_BY(released_mutex_);
  std::thread watcher_;
  std::unique_ptr<internal::HealthListener> listener_;
  std::atomic<bool> is_stopping_{false};
  std::optional<Error> replaced_;  // written once, before:
  std::atomic<bool> is_replaced_{false};
  const int uncaught_at_start_ = std::uncaught_exceptions();
  std::atomic<bool> was_fetch_short_{true};
};

}  // namespace cohort::coordinator
