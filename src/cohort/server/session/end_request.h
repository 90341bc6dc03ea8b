// SPDX-License-Identifier: Apache-2.0
// Whether a task is to end: it was asked to, or a signal has arrived.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "cohort/core/clock.h"
#include "cohort/core/error.h"
#include "cohort/core/mutex.h"

namespace cohort::server {

// Thread-safe. Only one object at a time may handle signals.
class EndRequest {
 public:
  // Handles SIGTERM and SIGINT while the object exists, except those that the program handles
  // itself.
  explicit EndRequest(bool handles_signals);
  ~EndRequest();
  EndRequest(const EndRequest&) = delete;
  EndRequest& operator=(const EndRequest&) = delete;

  void make(std::chrono::milliseconds grace);
  // Because of this lack, without grace; ignored after another request.
  void make(const Error& lack);
  bool is_made() const;
  // The lack because of which the task ends, if that is the reason.
  std::optional<Error> lack() const;
  // Returns false at the deadline.
  bool wait(Deadline until);
  // How long running work may go on; over already if nothing asks for the end.
  Deadline grace() const;
  // The deadline for the end of messages and handlers: kEnd after the grace, or after kSignalGrace
  // if that is later.
  static Deadline end_after(Deadline grace);

 private:
  static constexpr auto kSignalPoll = std::chrono::milliseconds(100);
  static constexpr auto kSignalGrace = std::chrono::seconds(5);
  static constexpr auto kEnd = std::chrono::seconds(3);
  class SignalScope;

  bool is_made_locked() const COHORT_REQUIRES(mutex_);

  const std::unique_ptr<SignalScope> signals_;  // null: signals do not count
  mutable Mutex mutex_;
  Condition changed_;
  bool is_ending_ COHORT_GUARDED_BY(mutex_) = false;
  std::optional<Error> lack_ COHORT_GUARDED_BY(mutex_);
  Deadline end_by_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::server
