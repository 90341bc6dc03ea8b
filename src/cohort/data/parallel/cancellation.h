// SPDX-License-Identifier: Apache-2.0
// Tells the stages of a running pipeline that it was cancelled.
#pragma once

#include <stop_token>

namespace cohort::data {

// A pipeline has one, and each stage that owns threads has a child of it for its input. The stage
// cancels the child when it is destroyed, so that its threads stop. Cancelling a parent cancels its
// children (tf's CancellationManager). Thread-safe.
class Cancellation {
 public:
  explicit Cancellation(const std::stop_token& parent) : from_parent_(parent, Forward{source_}) {}
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;

  bool is_cancelled() const noexcept { return source_.stop_requested(); }
  void cancel() noexcept { source_.request_stop(); }
  // For children, and for std::stop_callback to wake waiting threads.
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
