// SPDX-License-Identifier: Apache-2.0
// How the stages of a running pipeline hear that nobody wants its elements any more.
#pragma once

#include <stop_token>

namespace cohort::data {

// A pipeline has one, and each stage that owns threads makes another one for what lies before it,
// which it cancels when it is destroyed: its threads then leave whatever they are filling. A
// cancelled one cancels those made below it (tf's CancellationManager). Thread-safe.
class Cancellation {
 public:
  explicit Cancellation(const std::stop_token& parent) : from_parent_(parent, Forward{source_}) {}
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;

  bool is_cancelled() const noexcept { return source_.stop_requested(); }
  void cancel() noexcept { source_.request_stop(); }
  // For those below, and for std::stop_callback, which wakes who waits.
  std::stop_token token() const noexcept { return source_.get_token(); }

 private:
  struct Forward {
    std::stop_source& source;
    void operator()() const noexcept { source.request_stop(); }
  };

  std::stop_source source_;
  std::stop_callback<Forward> from_parent_;  // may run at once, so it is made last
};

}  // namespace cohort::data
