// SPDX-License-Identifier: Apache-2.0
#include "cohort/train/stop_signals.h"

#include <signal.h>
#include <time.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "cohort/core/error.h"
#include "cohort/function/trace.h"
#include "cohort/strategy/replica_context.h"
#include "cohort/strategy/strategy.h"
#include "cohort/strategy/strategy_access.h"
#include "cohort/workers/strategy_workers.h"

namespace cohort {
namespace {

constexpr std::array kSignals{SIGTERM, SIGINT};
constexpr int kExitCode = 75;

std::atomic<bool> exists_stop_signals{false};
// Written by the handler, which may only use what has no lock.
std::atomic<int> stop_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);
// A signal within this time of the first one is the same request: `timeout` sends its signal to the
// process and to the group, and `cohort launch` passes on what Ctrl-C has sent to the chief, too.
constexpr std::int64_t kSameRequestNanoseconds = 250'000'000;
std::atomic<std::int64_t> stop_signal_time{0};
static_assert(std::atomic<std::int64_t>::is_always_lock_free);
// Whether the handler may replace the action of each signal: this object handles it.
std::array<std::atomic<bool>, kSignals.size()> is_handled{};

// clock_gettime() may be called in handlers, which is not said of std::chrono.
std::int64_t nanoseconds_now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

extern "C" void note_stop_signal(int number) {
  const std::int64_t now = nanoseconds_now();
  std::int64_t first = 0;
  if (stop_signal_time.compare_exchange_strong(first, now)) {
    stop_signal = number;
    return;
  }
  if (now < first + kSameRequestNanoseconds) return;
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    if (is_handled[i]) ::signal(kSignals[i], SIG_DFL);
  }
  ::raise(number);  // it ends the process when this handler has returned
}

}  // namespace

class StopSignals::Scope {
 public:
  Scope() {
    stop_signal = 0;
    stop_signal_time = 0;
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      ::sigaction(kSignals[i], nullptr, &before_[i]);
      is_handled[i] = (before_[i].sa_flags & SA_SIGINFO) != 0 || before_[i].sa_handler != SIG_IGN;
    }
    struct sigaction ours {};
    ours.sa_handler = &note_stop_signal;
    ours.sa_flags = SA_RESTART;  // calls of libraries that wait go on
    // The other signal waits meanwhile, so that it finds the default action.
    for (const int number : kSignals) ::sigaddset(&ours.sa_mask, number);
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      if (is_handled[i]) ::sigaction(kSignals[i], &ours, nullptr);
    }
  }
  ~Scope() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      if (is_handled[i].exchange(false)) ::sigaction(kSignals[i], &before_[i], nullptr);
    }
    exists_stop_signals = false;
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  std::array<struct sigaction, kSignals.size()> before_{};
};

StopSignals::StopSignals() {
  COHORT_CHECK(!exists_stop_signals.exchange(true), ErrorCode::failed_precondition,
               "[train.stop_signals] expected no other StopSignals in this process, got a second "
               "one; make one in main() and pass it on");
  scope_ = std::make_unique<Scope>();
}

StopSignals::~StopSignals() = default;

bool StopSignals::requested() const { return stop_signal != 0; }

int StopSignals::signal() const { return stop_signal; }

int StopSignals::exit_code() const { return kExitCode; }

bool StopSignals::agreed(Strategy& strategy) const {
  const ReplicaContext* const replica = get_replica_context();
  const bool is_in_replica =
      replica != nullptr && &replica->strategy() == &strategy && &strategy != &default_strategy();
  COHORT_CHECK(
      !is_in_replica && function::Trace::current() == nullptr, ErrorCode::failed_precondition,
      "[train.stop_signals] expected agreed() outside of run() and of steps, got it inside "
      "of one; call it between two steps");
  internal::StrategyWorkers* const workers = internal::StrategyAccess::workers(strategy);
  if (workers == nullptr || !workers->are_several()) return requested();
  return workers->agree_to_stop(requested());
}

}  // namespace cohort
