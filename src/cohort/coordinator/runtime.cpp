// SPDX-License-Identifier: Apache-2.0
// What callers do: schedule, join, done, fetch.
#include "cohort/coordinator/internal/runtime.h"

#include <algorithm>
#include <utility>

#include "cohort/coordinator/internal/callers.h"
#include "cohort/coordinator/internal/coordinator_options.h"
#include "cohort/core/detail/random.h"
#include "cohort/core/log.h"
#include "cohort/data/detail/string_fields.h"
#include "cohort/function/detail/variable_read.h"
#include "cohort/rpc/detail/travel.h"
#include "cohort/variable/detail/eager_step.h"
#include "cohort/variable/detail/hyperparameter.h"

namespace cohort::coordinator {
namespace {

// How long a fetch looks for its result before it sleeps, where that helped the last time: waking
// up takes as long as a short closure.
constexpr auto kFetchSpin = std::chrono::microseconds(50);
// Of the workers' data timeout: they say which parameter server does not answer, and are to be
// heard before this process gives up.
constexpr int kWorkersFirst = 2;
constexpr Duration kForEver = Duration::max() / 4;  // and can still be added to a time
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

// They end in the input pipeline.
void check_no_strings(const Function& fn, std::size_t argument, const Nest& value) {
  const std::optional<data::FieldPath> strings = data::find_strings(value);
  COHORT_CHECK(!strings, ErrorCode::invalid_argument,
               "[coordinator.schedule] expected tensors of numbers, got strings",
               value.is_leaf() ? std::string() : " in " + strings->to_string(), " (argument ",
               argument, " of '", fn.name(), "'); ", data::kStringRemedy,
               ", or pass a single text that the function itself reads as a std::string");
}

// Their closure would cost its worker all that leaves in the same message.
void check_can_travel(const Function& fn, std::size_t argument, const at::Tensor& tensor) {
  const std::string obstacle = rpc::obstacle_to_travel(tensor);
  COHORT_CHECK(obstacle.empty(), ErrorCode::invalid_argument,
               "[coordinator.schedule] expected dense CPU tensors, got ", obstacle, " (argument ",
               argument, " of '", fn.name(),
               "'); make it dense and move it to the CPU, or leave it out");
  COHORT_CHECK(!tensor.unsafeGetTensorImpl()->is_wrapped_number(), ErrorCode::invalid_argument,
               "[coordinator.schedule] expected tensors, got a number that LibTorch has wrapped "
               "into one (argument ",
               argument, " of '", fn.name(),
               "'), which decides less about the dtype of results than a tensor does on the "
               "worker; pass the number itself, or a clone()");
}

// The graph of an argument stays behind, so gradients in the step would lack what flows through it.
void check_gradients(const Function& fn, std::size_t argument, const at::Tensor& tensor,
                     std::vector<at::Tensor>& leaves) {
  if (!tensor.requires_grad()) return;
  COHORT_CHECK(tensor.is_leaf(), ErrorCode::invalid_argument,
               "[coordinator.schedule] expected arguments without a graph, got one that was "
               "computed from tensors that require a gradient (argument ",
               argument, " of '", fn.name(),
               "'), which no gradient reaches from a worker; pass its detach(), or compute it "
               "inside the function");
  const bool is_second = std::any_of(leaves.begin(), leaves.end(),
                                     [&](const at::Tensor& leaf) { return leaf.is_same(tensor); });
  COHORT_CHECK(!is_second, ErrorCode::invalid_argument,
               "[coordinator.schedule] expected a tensor that requires a gradient once, got it "
               "twice (the second is argument ",
               argument, " of '", fn.name(),
               "'), and a worker would take them for two, each with a gradient of its own; pass it "
               "once, or its detach() the second time");
  leaves.push_back(tensor);
}

}  // namespace

bool take_values_of_reads(std::vector<Nest>& arguments, const function::BoundArguments& bound) {
  using function::is_computed_from_reads;
  if (std::none_of(bound.tensors.begin(), bound.tensors.end(), is_computed_from_reads))
    return false;
  for (Nest& argument : arguments) {
    argument = argument.map_leaves([](const Nest& leaf) -> Nest {
      if (!leaf.is_tensor() || !is_computed_from_reads(leaf.tensor())) return leaf;
      return leaf.tensor().detach();
    });
  }
  return true;
}

void check_tensors(const detail::ParameterServerHome& home, const Function& fn,
                   std::span<const Nest> arguments, const function::BoundArguments& bound) {
  const auto is_plain = [&](const at::Tensor& tensor) {
    return rpc::obstacle_to_travel(tensor).empty() &&
           !tensor.unsafeGetTensorImpl()->is_wrapped_number() && !tensor.requires_grad() &&
           home.variables().find(tensor) == nullptr;
  };
  if (std::all_of(bound.tensors.begin(), bound.tensors.end(), is_plain)) return;
  std::vector<at::Tensor> leaves;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    check_no_strings(fn, i, arguments[i]);
    const std::string which = " (argument " + std::to_string(i) + " of '" + fn.name() + "')";
    for (const at::Tensor& tensor : function::bind_arguments(arguments.subspan(i, 1)).tensors) {
      home.check_is_no_stand_in("coordinator.schedule", tensor, which);
      check_can_travel(fn, i, tensor);
      check_gradients(fn, i, tensor, leaves);
    }
  }
}

void check_outside_step(std::string_view call) {
  COHORT_CHECK(function::Trace::current() == nullptr && !EagerStep::is_scheduled_here(),
               ErrorCode::failed_precondition, "[coordinator.", call,
               "] expected a call outside of scheduled functions, got one inside, which would wait "
               "for itself; call it before, and pass what it gives as an argument");
}

Runtime::Runtime(ParameterServerStrategy& strategy, CoordinatorOptions options,
                 CoordinatorNumbers numbers)
    : strategy_(strategy),
      home_(strategy.home()),
      connection_(home_->connection()),
      options_(options),
      data_timeout_(options.progress_timeout != Duration::zero()
                        ? std::min(options.progress_timeout, kForEver)
                        : kWorkersFirst * std::min(connection_.options().data_timeout, kForEver)),
      datasets_(connection_.num_workers(), options.max_traces_per_dataset_function),
      eager_steps_(strategy),
      queue_(internal::queue_options(options), connection_.num_workers()),
      numbers_(std::move(numbers)),
      workers_(connection_.num_workers()),
      last_progress_(Clock::system().now()) {
  for (Worker& worker : workers_) {
    worker.window = internal::InFlightWindow(options.in_flight_per_worker);
  }
  released_.swap(numbers_.left_iterators);
}

RemoteValue Runtime::schedule(const Function& fn, std::vector<Nest> arguments) {
  check_outside_step("schedule");
  COHORT_CHECK(fn.state()->registered_name.empty() ? fn.state()->arity == arguments.size() : true,
               ErrorCode::invalid_argument, "[coordinator.schedule] '", fn.name(), "' takes ",
               fn.state()->arity, " arguments, got ", arguments.size());
  check_running("schedule");
  fn.convert_numbers(arguments);
  function::BoundArguments bound = function::bind_arguments(arguments);
  if (take_values_of_reads(arguments, bound)) bound = function::bind_arguments(arguments);
  check_iterators(bound);
  check_tensors(*home_, fn, arguments, bound);
  if (options_.run_eagerly) return run_eagerly(fn, arguments);
  Pending pending;
  pending.function = step_for(fn, arguments);
  pending.resources = std::move(bound.resources);
  pending.arguments.keep(bound.tensors, kArgumentHandles);
  pending.captured_at = hyperparameter_time();
  pending.captured = pending.function->captured(pending.counted);
  const auto result = std::make_shared<RemoteState>(weak_from_this());
  pending.result = result;

  const Wait how{.call = "schedule", .last = Flush::batched};
  const Turn turn(*this, Deadline());
  ClosureId id = 0;
  bool is_accepted = false;
  const auto put = [&](Actions& actions) COHORT_NO_THREAD_SAFETY_ANALYSIS {
    const TimePoint now = Clock::system().now();
    if (id == 0) {
      if (queue_.in_flight() + queue_.queued() == 0) last_progress_ = now;
      id = numbers_.next_closure++;
      admit(id, std::move(pending));
    } else if (!is_accepted && id + 1 != numbers_.next_closure) {
      id = renumber(id);
    }
    const Verdict verdict = queue_.put(id, now, actions);
    is_accepted = is_accepted || queue_.has_accepted(id);
    return verdict;
  };
  Verdict verdict;
  try {
    verdict = settle(how, std::ref(put));
  } catch (...) {
    if (!is_accepted) forget_refused(id);
    throw;
  }
  if (verdict.kind == Verdict::Kind::raise) {
    if (!is_accepted) forget_refused(id);
    throw *verdict.error;
  }
  return RemoteValue(result);
}

// A step of an epoch came while the closure waited for room, and ids grow.
ClosureId Runtime::renumber(ClosureId waiting) {
  auto node = pending_.extract(waiting);
  if (node.empty()) return waiting;  // stop() has taken it
  node.key() = numbers_.next_closure++;
  return pending_.insert(std::move(node)).position->first;
}

// The queue, which was full for too long or has stopped, never took it.
void Runtime::forget_refused(ClosureId closure) {
  const Lock lock(mutex_);
  pending_.erase(closure);
}

// Another coordinator's would not come back with a worker that was lost.
void Runtime::check_iterators(const function::BoundArguments& bound) const {
  for (const Nest& resource : bound.resources) {
    const auto* iterator = dynamic_cast<const IteratorHandle*>(resource.handle().get());
    COHORT_CHECK(iterator == nullptr || iterator->is_of(*this), ErrorCode::invalid_argument,
                 "[coordinator.schedule] expected an iterator of this coordinator, got one of a "
                 "coordinator that has ended; call create_per_worker_dataset(…).iterator() again");
  }
}

void Runtime::check_running(std::string_view call) const {
  if (is_replaced_) throw Error(*replaced_);
  COHORT_CHECK(!is_stopping_, ErrorCode::cancelled, "[coordinator.", call,
               "] expected a coordinator that lives, got one whose last handle has gone; keep the "
               "ClusterCoordinator until its work is done");
}

bool Runtime::join(std::optional<Duration> timeout) {
  check_outside_step("join");
  raise_eager_error();
  const Deadline deadline = timeout ? Deadline::after(*timeout) : Deadline();
  const Wait how{.call = "join", .deadline = deadline};
  const Turn turn(*this, deadline);
  if (!turn.has_come()) return false;
  const Verdict verdict = settle(how, [&](Actions& actions) COHORT_NO_THREAD_SAFETY_ANALYSIS {
    return queue_.join(Clock::system().now(), actions);
  });
  if (verdict.kind == Verdict::Kind::raise) throw *verdict.error;
  return verdict.kind == Verdict::Kind::proceed;
}

bool Runtime::done() {
  check_outside_step("done");
  raise_eager_error();
  const Verdict verdict =
      settle({.call = "done"}, [&](Actions& actions) COHORT_NO_THREAD_SAFETY_ANALYSIS {
        return queue_.done(Clock::system().now(), actions);
      });
  if (verdict.kind == Verdict::Kind::raise) throw *verdict.error;
  return verdict.kind == Verdict::Kind::proceed;
}

// Asks until the queue has a verdict. Meanwhile it traces what closures wait for, since only
// callers' threads may. At its deadline it gives up with `wait`.
Verdict Runtime::settle(const Wait& how, const std::function<Verdict(Actions&)>& ask) {
  while (true) {
    Verdict verdict;
    std::exception_ptr failure;  // of what `ask` calls that is the user's, as a learning rate
    bool must_trace = false;
    bool is_final = false;
    if (has_program_requests_) answer_program_requests();
    {
      const Lock lock(mutex_);
      if (is_replaced_) throw Error(*replaced_);
      Actions actions = take_actions();
      try {
        verdict = ask(actions);
      } catch (...) {
        failure = std::current_exception();
      }
      carry_out(actions);  // also what the queue has started before the failure
      give_back(std::move(actions));
      is_final = failure != nullptr || verdict.kind == Verdict::Kind::proceed ||
                 verdict.kind == Verdict::Kind::no || verdict.kind == Verdict::Kind::raise;
      must_trace = !is_final && queue_.has_waiting_for_program();
      const bool can_wait = !is_final && !must_trace && to_flush_.empty();
      if (can_wait && how.deadline.has_expired()) return verdict;
      if (can_wait && program_requests_.empty()) {
        const Deadline stalled = progress_deadline();
        const TimePoint before = last_progress_;
        const TimePoint until = std::min(how.deadline.time(), stalled.time());
        // Woken or not, the queue is asked again.
        changed_.wait(mutex_, Deadline(until),
                      [asked = false]() mutable { return std::exchange(asked, true); });
        if (last_progress_ == before && stalled.has_expired()) {
          // Who calls next() again waits as long again.
          if (how.epoch != nullptr) last_progress_ = Clock::system().now();
          throw_stalled(how);
        }
      }
    }
    flush(is_final && failure == nullptr ? how.last : Flush::all);
    if (failure != nullptr) std::rethrow_exception(failure);
    if (is_final) return verdict;
    if (must_trace) trace_waiting();
  }
}

void Runtime::wait_for(const RemoteState& state, Deadline deadline) {
  const TimePoint start = Clock::system().now();
  flush();  // it may itself wait for another report
  if (was_fetch_short_.load(std::memory_order_relaxed) && is_ready_within(state, kFetchSpin))
    return;
  const FetcherCount counted(*this);
  const Verdict verdict =
      settle({.call = "fetch", .deadline = deadline, .awaited = &state}, [&](Actions&) {
        return Verdict{state.is_ready() ? Verdict::Kind::proceed : Verdict::Kind::wait,
                       std::nullopt};
      });
  was_fetch_short_.store(Clock::system().now() - start < 4 * kFetchSpin, std::memory_order_relaxed);
  if (verdict.kind == Verdict::Kind::proceed) return;
  const Lock lock(mutex_);
  ::cohort::internal::throw_error(
      ErrorCode::deadline_exceeded, "[coordinator.fetch] expected the closure to end within ",
      internal::seconds_of(std::max(deadline.time() - start, Duration::zero())),
      " s, got no word of it; still waiting for ", debtors(&state),
      "; fetch again, with a later deadline or none");
}

Deadline Runtime::progress_deadline() const { return Deadline(last_progress_ + data_timeout_); }

void Runtime::throw_stalled(const Wait& how) const {
  ::cohort::internal::throw_error(
      ErrorCode::deadline_exceeded, "[coordinator.", how.call, "] no closure has ended for ",
      internal::seconds_of(data_timeout_), " s; still waiting for ",
      how.epoch != nullptr ? debtors_of(*how.epoch) : debtors(how.awaited),
      "; see whether these tasks hang, or raise ",
      options_.progress_timeout == Duration::zero() ? "ClusterOptions::data_timeout"
                                                    : "CoordinatorOptions::progress_timeout",
      " for longer steps");
}

std::string Runtime::debtors(const RemoteState* awaited) const {
  const std::string counts = "; " + std::to_string(queue_.in_flight()) + " closures in flight, " +
                             std::to_string(queue_.queued()) + " queued";
  const std::string holder = awaited == nullptr ? "" : holder_of(*awaited);
  if (!holder.empty()) return holder + ", which has its closure" + counts;
  std::vector<bool> owes(workers_.size());
  for (const auto& [id, pending] : pending_) {
    if (queue_.is_running(id, pending.worker)) owes[pending.worker] = true;
  }
  std::string names;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const Worker& worker = workers_[i];
    if (worker.is_ready && !owes[i]) continue;
    names += (names.empty() ? "worker:" : ", worker:") + std::to_string(i);
    if (worker.is_ready) continue;
    names += worker.refusal.empty() ? " (away)" : " (away: " + worker.refusal + ")";
  }
  return (names.empty() ? "no worker" : names) + counts;
}

// The worker that has it; empty: none, or it has ended. Looks at every closure: for errors only.
std::string Runtime::holder_of(const RemoteState& awaited) const {
  for (const auto& [id, pending] : pending_) {
    if (pending.result.lock().get() == &awaited && queue_.is_running(id, pending.worker))
      return "worker:" + std::to_string(pending.worker);
  }
  return "";
}

CoordinatorStatistics Runtime::statistics() const {
  const Lock lock(mutex_);
  CoordinatorStatistics statistics = totals_;
  for (const Worker& worker : workers_) statistics.closures.push_back(worker.closures);
  return statistics;
}

std::size_t Runtime::pending_count() const {
  const Lock lock(mutex_);
  return pending_.size();
}

CoordinatorNumbers Runtime::numbers() {
  std::vector<std::uint64_t> released;
  {
    const Lock lock(released_mutex_);
    released.swap(released_);
  }
  const Lock lock(mutex_);
  CoordinatorNumbers numbers = numbers_;
  numbers.left_iterators = std::move(released);
  for (const auto& [id, iterator] : iterators_) numbers.left_iterators.push_back(id);
  return numbers;
}

}  // namespace cohort::coordinator
