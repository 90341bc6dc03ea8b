// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/functions/callers.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "cohort/coordinator/runtime/coordinator_options.h"
#include "cohort/core/spin.h"

namespace cohort::coordinator {
namespace {

// How long a fetch polls for its result before it sleeps, if polling helped the last time: waking
// up takes as long as a short closure.
constexpr auto kFetchSpin = std::chrono::microseconds(50);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMaySpin = false;
#else
constexpr bool kMaySpin = true;
#endif

bool is_soon_ready(const RemoteState& state) {
  return kMaySpin && has_core_each(2) && spin_for(kFetchSpin, [&] { return state.is_ready(); });
}

}  // namespace

// A caller's turn in schedule or join, if it got one before the deadline. The turn becomes free,
// since the caller that has it throws if no closure ends for the data timeout.
class Callers::Turn {
 public:
  Turn(Callers& callers, Deadline deadline) : callers_(callers) {
    const Lock lock(callers_.turn_mutex_);
    has_come_ = callers_.turn_changed_.wait(
        callers_.turn_mutex_, deadline,
        [this]() COHORT_REQUIRES(callers_.turn_mutex_) { return !callers_.is_turn_taken_; });
    if (has_come_) callers_.is_turn_taken_ = true;
  }
  ~Turn() {
    if (!has_come_) return;
    {
      const Lock lock(callers_.turn_mutex_);
      callers_.is_turn_taken_ = false;
    }
    callers_.turn_changed_.notify_one();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  bool has_come() const { return has_come_; }

 private:
  Callers& callers_;
  bool has_come_ = false;
};

void Callers::put(std::span<PendingClosure> pending) {
  const Turn turn(*this, Deadline());
  std::size_t next = 0;
  std::optional<NewClosure> closure;
  const auto put_all = [&](Actions& actions) COHORT_REQUIRES(runtime_lock) {
    for (; next < pending.size(); ++next, closure.reset()) {
      PendingClosure& one = pending[next];
      if (!closure)
        closure.emplace(
            NewClosure{.pending = one, .priority = one.priority, .deadline = one.deadline});
      Verdict verdict = scheduler_.put(*closure, actions);
      if (verdict.kind != Verdict::Kind::proceed) return verdict;
    }
    return Verdict{};
  };
  try {
    settle({.call = "schedule", .last = Flush::batched}, put_all);
  } catch (...) {
    const RuntimeLock lock(context_);
    if (closure) scheduler_.forget_refused(*closure);
    throw;
  }
}

void Callers::put_on(std::uint32_t worker, std::span<PendingClosure> pending) {
  const Turn turn(*this, Deadline());
  std::size_t next = 0;
  settle({.call = "schedule", .last = Flush::batched},
         [&](Actions& actions) COHORT_REQUIRES(runtime_lock) {
           if (scheduler_.queue().has_error()) return scheduler_.done(actions);
           for (; next < pending.size(); ++next) {
             Verdict verdict = scheduler_.put_on(worker, std::move(pending[next]), actions);
             if (verdict.kind != Verdict::Kind::proceed) return verdict;
           }
           return Verdict{};
         });
}

bool Callers::join(std::optional<Duration> timeout) {
  const Deadline deadline = timeout ? Deadline::after(*timeout) : Deadline();
  const Turn turn(*this, deadline);
  if (!turn.has_come()) return false;
  return settle({.call = "join", .deadline = deadline},
                [&](Actions& actions)
                    COHORT_REQUIRES(runtime_lock) { return scheduler_.join(actions); });
}

bool Callers::done() {
  return settle({.call = "done"}, [&](Actions& actions) COHORT_REQUIRES(runtime_lock) {
    return scheduler_.done(actions);
  });
}

void Callers::pause(std::string_view call) {
  {
    const RuntimeLock lock(context_);
    scheduler_.pause();
    scheduler_.count_fetchers(1);  // each end of a closure wakes this caller
  }
  try {
    settle({.call = call}, [&](Actions&) COHORT_REQUIRES(runtime_lock) {
      const bool are_any = scheduler_.queue().running() > 0;
      return Verdict{are_any ? Verdict::Kind::wait : Verdict::Kind::proceed, std::nullopt};
    });
  } catch (...) {
    resume();
    throw;
  }
}

void Callers::resume() {
  {
    const RuntimeLock lock(context_);
    scheduler_.count_fetchers(-1);
    context_.last_progress = Clock::system().now();  // until now closures waited for this process
    scheduler_.resume();
  }
  scheduler_.flush();
}

bool Callers::settle(const Wait& how, const Ask& ask) {
  while (true) {
    Verdict verdict;
    // Thrown by the user's code in `ask`, such as a learning rate's function.
    std::exception_ptr failure;
    bool must_trace = false;
    bool is_final = false;
    datasets_.answer_all();
    {
      const RuntimeLock lock(context_);
      if (context_.is_replaced) throw Error(*context_.replaced);
      Actions actions = scheduler_.take_actions();
      try {
        verdict = ask(actions);
      } catch (...) {
        failure = std::current_exception();
      }
      scheduler_.carry_out(std::move(actions));  // also those that precede a failure
      is_final = failure != nullptr || verdict.kind == Verdict::Kind::proceed ||
                 verdict.kind == Verdict::Kind::no || verdict.kind == Verdict::Kind::raise;
      must_trace = !is_final && scheduler_.queue().has_waiting_for_program();
      const bool can_wait = !is_final && !must_trace && !scheduler_.has_unflushed();
      if (can_wait && how.deadline.has_expired()) return false;
      if (can_wait && !datasets_.has_questions()) wait_for_change(how);
    }
    scheduler_.flush(is_final && failure == nullptr ? how.last : Flush::all);
    if (failure != nullptr) std::rethrow_exception(failure);
    if (verdict.kind == Verdict::Kind::raise) throw *verdict.error;
    if (is_final) return verdict.kind == Verdict::Kind::proceed;
    if (must_trace) trace_waiting();
  }
}

// Returns after a wake-up or a timeout; the caller then asks the queue again.
void Callers::wait_for_change(const Wait& how) {
  const Deadline stalled = progress_deadline();
  const TimePoint before = context_.last_progress;
  const TimePoint until = std::min(how.deadline.time(), stalled.time());
  const bool awaits_one = how.awaited != nullptr || how.epoch != nullptr;
  if (awaits_one) scheduler_.count_fetchers(1);
  context_.wait(context_.changed, Deadline(until),
                [asked = false]() mutable { return std::exchange(asked, true); });
  if (awaits_one) scheduler_.count_fetchers(-1);
  if (context_.last_progress != before || !stalled.has_expired()) return;
  // The next call of next() has the full time again.
  if (how.epoch != nullptr) context_.last_progress = Clock::system().now();
  throw_stalled(how);
}

void Callers::wait_for(const RemoteState& state, Deadline deadline) {
  const TimePoint start = Clock::system().now();
  scheduler_.flush();  // the closure may still wait in an outbox for the worker's next report
  if (was_fetch_short_.load(std::memory_order_relaxed) && is_soon_ready(state)) return;
  const bool has_come =
      settle({.call = "fetch", .deadline = deadline, .awaited = &state}, [&](Actions&) {
        return Verdict{state.is_ready() ? Verdict::Kind::proceed : Verdict::Kind::wait,
                       std::nullopt};
      });
  was_fetch_short_.store(Clock::system().now() - start < 4 * kFetchSpin, std::memory_order_relaxed);
  if (has_come) return;
  const RuntimeLock lock(context_);
  ::cohort::internal::throw_error(
      ErrorCode::deadline_exceeded, "[coordinator.fetch] expected the closure to end within ",
      seconds_of(std::max(deadline.time() - start, Duration::zero())),
      " s, got no report of its end; still waiting for ",
      still_waiting_for(scheduler_, pool_, &state), "; fetch again, with a later deadline or none");
}

void Callers::throw_stalled(const Wait& how) const {
  if (const std::optional<Error>& again = scheduler_.queue().last_again()) {
    ::cohort::internal::throw_error(
        ErrorCode::deadline_exceeded, "[coordinator.", how.call, "] no closure has ended well for ",
        seconds_of(context_.data_timeout), " s; all run again, since ", again->origin(),
        " had an error: ", again->message(), "; see that ", again->origin(),
        " runs, and start the program again if it was restarted; "
        "CoordinatorOptions::max_transient_ps_failures says after how many such errors to give up");
  }
  ::cohort::internal::throw_error(
      ErrorCode::deadline_exceeded, "[coordinator.", how.call, "] no closure has ended for ",
      seconds_of(context_.data_timeout), " s; still waiting for ",
      how.epoch != nullptr ? epoch_still_waiting_for(*how.epoch, scheduler_, pool_)
                           : still_waiting_for(scheduler_, pool_, how.awaited),
      "; see whether these tasks hang, or raise ",
      context_.options.progress_timeout == Duration::zero()
          ? "ClusterOptions::data_timeout"
          : "CoordinatorOptions::progress_timeout",
      " for longer steps");
}

void Callers::trace_waiting() {
  std::vector<ClosureId> waiting;
  {
    const RuntimeLock lock(context_);
    waiting = scheduler_.queue().waiting_for_program();
  }
  for (const ClosureId closure : waiting) trace_one(closure);
}

void Callers::trace_one(ClosureId closure) {
  const auto stand_ins = context_.home->lock_stand_ins();
  const Lock tracing(context_.tracing);
  std::shared_ptr<StepFunction> step;
  std::vector<at::Tensor> drawn;
  {
    const RuntimeLock lock(context_);
    const PendingClosures::Map& all = scheduler_.pending().all();
    const auto pending = all.find(closure);
    if (pending == all.end()) return;
    step = pending->second.function;
    drawn = pending->second.reported;
    functions_.set_tracing_late(true);
  }
  std::optional<Error> error;
  try {
    functions_.trace_drawn(*step, drawn);
  } catch (...) {
    error = current_error();
  }
  {
    const RuntimeLock lock(context_);
    functions_.set_tracing_late(false);
    scheduler_.end_trace(closure, std::move(error));
  }
  scheduler_.flush();
}

}  // namespace cohort::coordinator
