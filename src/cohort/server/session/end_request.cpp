// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/session/end_request.h"

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <vector>

namespace cohort::server {
namespace {

std::atomic<int> signal_received{0};

extern "C" void note_signal(int number) { signal_received = number; }

}  // namespace

class EndRequest::SignalScope {
 public:
  SignalScope() {
    signal_received = 0;
    for (const int number : {SIGTERM, SIGINT}) {
      struct sigaction now {};
      sigaction(number, nullptr, &now);
      if (now.sa_handler != SIG_DFL) continue;
      struct sigaction ours {};
      ours.sa_handler = &note_signal;
      sigaction(number, &ours, nullptr);
      taken_.push_back(number);
    }
  }
  ~SignalScope() {
    for (const int number : taken_) signal(number, SIG_DFL);
  }
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;

 private:
  std::vector<int> taken_;
};

EndRequest::EndRequest(bool handles_signals)
    : signals_(handles_signals ? std::make_unique<SignalScope>() : nullptr) {}

EndRequest::~EndRequest() = default;

void EndRequest::make(std::chrono::milliseconds grace) {
  const Lock lock(mutex_);
  is_ending_ = true;
  constexpr auto kMax = std::chrono::duration_cast<std::chrono::milliseconds>(Duration::max());
  end_by_ = Deadline::after(std::clamp(grace, std::chrono::milliseconds::zero(), kMax));
  changed_.notify_all();
}

void EndRequest::make(const Error& lack) {
  const Lock lock(mutex_);
  if (is_ending_) return;
  is_ending_ = true;
  lack_ = lack;
  end_by_ = Deadline::after(Duration::zero());
  changed_.notify_all();
}

std::optional<Error> EndRequest::lack() const {
  const Lock lock(mutex_);
  return lack_;
}

bool EndRequest::is_made() const {
  const Lock lock(mutex_);
  return is_made_locked();
}

bool EndRequest::is_made_locked() const { return is_ending_ || (signals_ && signal_received != 0); }

bool EndRequest::wait(Deadline until) {
  const Lock lock(mutex_);
  const auto is_over = [this]() COHORT_REQUIRES(mutex_) { return is_made_locked(); };
  while (!changed_.wait(mutex_, Deadline::after(kSignalPoll), is_over)) {
    if (until.has_expired()) return false;
  }
  return true;
}

Deadline EndRequest::end_after(Deadline grace) {
  if (grace.is_infinite()) return grace;
  return Deadline(std::max(Deadline::after(kSignalGrace).time(), grace.time()) + kEnd);
}

Deadline EndRequest::grace() const {
  const Lock lock(mutex_);
  if (is_ending_) return end_by_;
  const bool is_signalled = signals_ && signal_received != 0;
  return Deadline::after(is_signalled ? kSignalGrace : std::chrono::seconds(0));
}

}  // namespace cohort::server
