// SPDX-License-Identifier: Apache-2.0
// What callers do: schedule, join, done, fetch, and the traces that run on their threads.
#include "cohort/coordinator/internal/runtime.h"

#include <algorithm>

#include "cohort/core/log.h"
#include "cohort/core/random.h"

namespace cohort::coordinator {
namespace {

// Closures in flight together report one lost connection of a parameter server several times.
constexpr auto kSameEvent = std::chrono::seconds(1);
// How long a fetch looks for its result before it sleeps, where that helped the last time: waking
// up takes as long as a short closure.
constexpr auto kFetchSpin = std::chrono::microseconds(50);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMaySpin = false;
#else
constexpr bool kMaySpin = true;
#endif

// Yields between looks: on a machine of few cores the result may need this one.
bool is_ready_within(const RemoteState& state, Duration spin) {
  static const bool has_cores = std::thread::hardware_concurrency() > 1;
  if (!kMaySpin || !has_cores) return false;
  const TimePoint end = Clock::system().now() + spin;
  do {
    if (state.is_ready()) return true;
    std::this_thread::yield();
  } while (Clock::system().now() < end);
  return false;
}

QueueOptions queue_options(const CoordinatorOptions& options) {
  if (options.queue_capacity == 0) {
    log_warn(
        "the coordinator's queue has no bound: a caller that schedules faster than workers run "
        "uses ever more memory");
  }
  QueueOptions made;
  made.capacity = options.queue_capacity;
  made.in_flight_per_worker = options.in_flight_per_worker != 0
                                  ? options.in_flight_per_worker
                                  : internal::InFlightWindow::kSizeMin;
  made.same_event = kSameEvent;
  return made;
}

}  // namespace

Runtime::Runtime(ParameterServerStrategy& strategy, CoordinatorOptions options)
    : strategy_(strategy),
      keeps_connection_(strategy.shared_state()),
      connection_(strategy.connection()),
      options_(options),
      queue_(queue_options(options), connection_.num_workers()),
      workers_(connection_.num_workers()),
      last_end_(Clock::system().now()) {
  for (Worker& worker : workers_) {
    worker.window = internal::InFlightWindow(options.in_flight_per_worker);
  }
}

RemoteValue Runtime::schedule(const Function& fn, std::vector<Nest> arguments) {
  COHORT_CHECK(fn.state()->registered_name.empty() ? fn.state()->arity == arguments.size() : true,
               ErrorCode::invalid_argument, "[coordinator.schedule] '", fn.name(), "' takes ",
               fn.state()->arity, " arguments, got ", arguments.size());
  check_running();
  StepFunction* const step = step_for(fn, arguments);
  BoundArguments bound = bind_arguments(arguments);
  Pending pending;
  pending.function = step;
  pending.resources = std::move(bound.resources);
  pending.inputs = step->inputs_of(std::move(bound.tensors));
  const auto result = std::make_shared<RemoteState>(weak_from_this());
  pending.result = result;

  const Lock turn(turn_);
  ClosureId id = 0;
  const auto put = [&](Actions& actions) COHORT_NO_THREAD_SAFETY_ANALYSIS {
    const TimePoint now = Clock::system().now();
    if (id == 0) {
      if (queue_.in_flight() + queue_.queued() == 0) last_end_ = now;
      id = next_id_++;
      admit(id, std::move(pending));
    }
    return queue_.put(id, now, actions);
  };
  const Verdict verdict = settle(std::ref(put), Deadline(), true, Flush::batched);
  if (verdict.kind == Verdict::Kind::raise) throw *verdict.error;
  return RemoteValue(result);
}

void Runtime::check_running() const {
  COHORT_CHECK(!is_stopping_, ErrorCode::cancelled,
               "[coordinator.schedule] the coordinator has been destroyed");
}

bool Runtime::join(std::optional<Duration> timeout) {
  const Lock turn(turn_);
  const Verdict verdict = settle(
      [&](Actions& actions)
          COHORT_NO_THREAD_SAFETY_ANALYSIS { return queue_.join(Clock::system().now(), actions); },
      timeout ? Deadline::after(*timeout) : Deadline(), !timeout.has_value());
  if (verdict.kind == Verdict::Kind::raise) throw *verdict.error;
  return verdict.kind == Verdict::Kind::proceed;
}

bool Runtime::done() {
  const Verdict verdict = settle(
      [&](Actions& actions)
          COHORT_NO_THREAD_SAFETY_ANALYSIS { return queue_.done(Clock::system().now(), actions); },
      Deadline(), true);
  if (verdict.kind == Verdict::Kind::raise) throw *verdict.error;
  return verdict.kind == Verdict::Kind::proceed;
}

// Asks until the queue has a verdict. Meanwhile it traces what closures wait for, since only
// callers' threads may. At `deadline` it gives up with `wait`; a patient one gives up with an error
// when nothing has ended for too long.
Verdict Runtime::settle(const std::function<Verdict(Actions&)>& ask, Deadline deadline,
                        bool is_patient, Flush last) {
  while (true) {
    Verdict verdict;
    bool must_trace = false;
    bool is_final = false;
    {
      const Lock lock(mutex_);
      Actions actions = take_actions();
      verdict = ask(actions);
      carry_out(actions);
      give_back(std::move(actions));
      is_final = verdict.kind == Verdict::Kind::proceed || verdict.kind == Verdict::Kind::no ||
                 verdict.kind == Verdict::Kind::raise;
      must_trace = !is_final && queue_.has_waiting_for_program();
      if (!is_final && !must_trace && to_flush_.empty()) {
        if (deadline.has_expired()) return verdict;
        const Deadline stalled = is_patient ? progress_deadline() : Deadline();
        const TimePoint before = last_end_;
        const bool is_woken =
            changed_.wait(mutex_,
                          std::min(deadline.time(), stalled.time()) == TimePoint::max()
                              ? Deadline()
                              : Deadline(std::min(deadline.time(), stalled.time())),
                          [&, asked = false]() mutable { return std::exchange(asked, true); });
        COHORT_CHECK(is_woken || !is_patient || last_end_ != before || !stalled.has_expired(),
                     ErrorCode::deadline_exceeded, "[coordinator.join] no closure has ended for ",
                     std::chrono::duration<double>(connection_.options().data_timeout).count(),
                     " s; still waiting for ", debtors(),
                     "; raise ClusterOptions::data_timeout for longer steps");
      }
    }
    flush(is_final ? last : Flush::all);
    if (is_final) return verdict;
    if (must_trace) trace_waiting();
  }
}

// Has every end of a closure wake this thread while it lives.
class Runtime::FetcherCount {
 public:
  explicit FetcherCount(Runtime& runtime) : runtime_(runtime) { add(1); }
  ~FetcherCount() { add(-1); }
  FetcherCount(const FetcherCount&) = delete;
  FetcherCount& operator=(const FetcherCount&) = delete;

 private:
  void add(int change) {
    const Lock lock(runtime_.mutex_);
    runtime_.fetchers_ += change;
  }
  Runtime& runtime_;
};

void Runtime::wait_for(const RemoteState& state, Deadline deadline) {
  const TimePoint start = Clock::system().now();
  if (was_fetch_short_.load(std::memory_order_relaxed) && is_ready_within(state, kFetchSpin))
    return;
  const FetcherCount counted(*this);
  const Verdict verdict = settle(
      [&](Actions&) {
        return Verdict{state.is_ready() ? Verdict::Kind::proceed : Verdict::Kind::wait,
                       std::nullopt};
      },
      deadline, deadline.is_infinite());
  was_fetch_short_.store(Clock::system().now() - start < 4 * kFetchSpin, std::memory_order_relaxed);
  COHORT_CHECK(
      verdict.kind == Verdict::Kind::proceed, ErrorCode::deadline_exceeded,
      "[coordinator.fetch] the closure has not ended in time; still waiting for its worker");
}

Deadline Runtime::progress_deadline() const {
  return Deadline(last_end_ + connection_.options().data_timeout);
}

std::string Runtime::debtors() const {
  std::string names;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    names += (names.empty() ? "worker:" : ", worker:") + std::to_string(i) +
             (workers_[i].is_ready ? "" : " (away)");
  }
  return names + "; " + std::to_string(queue_.in_flight()) + " closures in flight, " +
         std::to_string(queue_.queued()) + " queued";
}

StepFunction* Runtime::step_for(const Function& fn, std::span<const Nest> arguments) {
  const auto find = [&]() COHORT_NO_THREAD_SAFETY_ANALYSIS -> StepFunction* {
    const auto found = steps_.find(fn.state().get());
    if (found == steps_.end()) return nullptr;
    for (const auto& step : found->second) {
      if (step->signature().matches(arguments)) return step.get();
    }
    return nullptr;
  };
  {
    const Lock lock(mutex_);
    if (StepFunction* step = find()) return step;
  }
  const Lock tracing(tracing_);
  std::uint32_t id = 0;
  {
    const Lock lock(mutex_);
    if (StepFunction* step = find()) return step;
    id = static_cast<std::uint32_t>(announced_.size());
  }
  const auto step = std::make_shared<StepFunction>(id, fn, CallSignature(arguments), strategy_);
  if (!step->is_registered()) trace_first(*step, bind_arguments(arguments));
  {
    const Lock lock(mutex_);
    announced_.push_back(step);
    steps_[fn.state().get()].push_back(step);
    ++version_;
    totals_.traces += step->trace_count();
  }
  announce(*step);
  return step.get();
}

void Runtime::trace_first(StepFunction& step, const BoundArguments& bound) {
  std::vector<Fields> elements;
  std::vector<Fields> others;
  for (const Nest& resource : bound.resources) {
    const auto& iterator = dynamic_cast<const IteratorHandle&>(*resource.handle());
    const std::uint32_t worker = ready_worker();
    const rpc::Connection link = connection_.worker(worker).connection;
    const std::string task = "worker:" + std::to_string(worker);
    const rpc::PeekReply reply = rpc::peek_reply_of(
        link.data->call(rpc::to_frame(rpc::PeekRequest{iterator.id(), 2}),
                        connection_.control_deadline(), "peeking at the data of " + task));
    COHORT_CHECK(reply.fields > 0, ErrorCode::out_of_range, "[coordinator.schedule] cannot trace '",
                 step.name(), "': the dataset of ", task, " is empty");
    const auto begin = reply.tensors.begin();
    const auto width = static_cast<std::ptrdiff_t>(reply.fields);
    elements.emplace_back(begin, begin + width);
    const bool has_second = reply.tensors.size() >= 2 * static_cast<std::size_t>(reply.fields);
    Fields second =
        has_second ? Fields(begin + width, begin + 2 * width) : rotated(elements.back());
    for (std::size_t i = 0; i < second.size(); ++i) {
      if (TensorSpec::of(second[i]) == TensorSpec::of(elements.back()[i])) continue;
      second = rotated(elements.back());
      break;
    }
    others.push_back(std::move(second));
  }
  step.trace_first(elements, others);
}

void Runtime::trace_waiting() {
  std::vector<ClosureId> waiting;
  {
    const Lock lock(mutex_);
    waiting = queue_.waiting_for_program();
  }
  for (const ClosureId closure : waiting) trace_one(closure);
}

void Runtime::trace_one(ClosureId closure) {
  const Lock tracing(tracing_);
  StepFunction* step = nullptr;
  std::vector<at::Tensor> drawn;
  {
    const Lock lock(mutex_);
    const auto found = pending_.find(closure);
    if (found == pending_.end()) return;
    step = found->second.function;
    drawn = found->second.drawn;
  }
  std::optional<Error> error;
  try {
    const std::size_t before = step->trace_count();
    step->trace_drawn(drawn);
    {
      const Lock lock(mutex_);
      ++version_;
      totals_.traces += step->trace_count() - before;
    }
    announce(*step);
  } catch (...) {
    error = current_error();
  }
  {
    const Lock lock(mutex_);
    Actions actions;
    if (error) {
      queue_.program_failed(closure, *error, Clock::system().now(), actions);
    } else {
      queue_.program_ready(closure, Clock::system().now(), actions);
    }
    carry_out(actions);
  }
  flush();
}

// Every worker that is there gets the function before a closure can name it. One that fails to take
// it for want of a connection will get it when it returns.
void Runtime::announce(const StepFunction& step) {
  const rpc::FunctionBody body = step.body();
  for (std::uint32_t i = 0; i < connection_.num_workers(); ++i) {
    ClusterConnection::WorkerLink link;
    {
      const Lock lock(mutex_);
      if (!workers_[i].is_ready) continue;
      link = workers_[i].link;
    }
    try {
      link.connection.control->register_function(body, connection_.control_deadline());
    } catch (const Error& error) {
      if (error.cause() != ErrorCause::peer_lost && error.code() != ErrorCode::deadline_exceeded)
        throw;
      log_warn("worker:", i, " did not take function '", step.name(), "': ", error.what());
      link.connection.data->close();
    }
  }
}

std::uint32_t Runtime::ready_worker() {
  const Lock lock(mutex_);
  std::uint32_t worker = 0;
  const bool is_found =
      changed_.wait(mutex_, connection_.control_deadline(), [&]() COHORT_NO_THREAD_SAFETY_ANALYSIS {
        for (worker = 0; worker < workers_.size(); ++worker) {
          if (workers_[worker].is_ready) return true;
        }
        return false;
      });
  COHORT_CHECK(is_found, ErrorCode::unavailable,
               "[coordinator.schedule] no worker is there to look at its data: ", debtors());
  return worker;
}

std::shared_ptr<IteratorHandle> Runtime::create_iterator(
    ElementSpec spec, std::shared_ptr<const std::vector<Bytes>> datasets) {
  check_running();
  std::shared_ptr<IteratorHandle> handle;
  std::vector<std::uint64_t> released;
  {
    const Lock lock(released_mutex_);
    released.swap(released_);
  }
  std::vector<std::pair<std::uint32_t, rpc::Connection>> present;
  {
    const Lock lock(mutex_);
    for (const std::uint64_t id : released) iterators_.erase(id);
    handle = std::make_shared<IteratorHandle>(next_iterator_++, std::move(spec),
                                              std::move(datasets), weak_from_this());
    iterators_[handle->id()] = handle;
    ++version_;
    for (std::uint32_t i = 0; i < workers_.size(); ++i) {
      if (workers_[i].is_ready) present.emplace_back(i, workers_[i].link.connection);
    }
  }
  for (auto& [worker, connection] : present) {
    try {
      if (!released.empty()) connection.control->release(released, connection_.control_deadline());
      connection.control->create_iterator({handle->id(), handle->dataset_of(worker),
                                           mix_seed(connection_.options().seed, handle->id())},
                                          connection_.control_deadline());
    } catch (const Error& error) {
      if (error.cause() != ErrorCause::peer_lost && error.code() != ErrorCode::deadline_exceeded)
        throw;
      connection.data->close();
    }
  }
  return handle;
}

void Runtime::release_iterator(std::uint64_t id) noexcept {
  const Lock lock(released_mutex_);
  released_.push_back(id);
}

CoordinatorStatistics Runtime::statistics() const {
  const Lock lock(mutex_);
  CoordinatorStatistics statistics = totals_;
  for (const Worker& worker : workers_) statistics.closures.push_back(worker.closures);
  return statistics;
}

}  // namespace cohort::coordinator
