// SPDX-License-Identifier: Apache-2.0
// A closure that runs, until all its pushes are acknowledged.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cohort/core/mutex.h"
#include "cohort/parameter_server/parameter_client.h"
#include "cohort/rpc/error_record.h"
#include "cohort/rpc/messages.h"
#include "cohort/server/closures/completion_sender.h"
#include "cohort/server/closures/iterator_table.h"
#include "cohort/server/closures/open_count.h"

namespace cohort::server {

// Closures that are shorter than this are reported several at a time.
inline constexpr auto kShortClosure = std::chrono::microseconds(50);

// The closures that have started and were not reported yet. Answers that are still to come keep
// this object alive after the runner. Thread-safe.
struct OpenClosures {
  OpenCount count;
  std::atomic<std::uint64_t> ended_well{0};
  std::atomic<std::uint64_t> failed{0};
  std::atomic<TimePoint> last_end{TimePoint::min()};
  std::shared_ptr<rpc::ErrorRecord> errors;

  void note_end(const rpc::ClosureEnd& end, TimePoint now);
};

// A closure that runs. It ends when the runner and all its pushes have called release().
struct RunningClosure {
  std::uint64_t id = 0;
  rpc::ClosureEnd end;
  VariableTraffic traffic;  // a part of the end, which gets it last
  std::shared_ptr<CompletionSender> sender;
  std::shared_ptr<OpenClosures> open;
  std::shared_ptr<data::OpenedFiles> files;  // of an epoch's iterator; it may outlive that
  std::string task;
  TimePoint started = Clock::system().now();
  // Whether the end may wait for that of the next closure. False if this closure may end after the
  // next one starts: its end may then be the last one.
  bool more_follow = false;
  std::atomic<std::size_t> unacknowledged{1};  // the runner itself counts as one
  Mutex mutex;
  Condition changed;
  std::atomic<bool> is_cancelled{false};

  // Asks it to end early. Thread-safe.
  void cancel();
  // Throws cancelled if it was cancelled.
  void check_cancelled() const;
  // Returns after `pause`, or earlier if it was cancelled.
  void wait(Duration pause);
  void fail(const Error& error);
  // Called for the end of each push, even if the closure has failed already, because a dropped push
  // that is not counted would be a missing update that nobody notices.
  void acknowledge(const std::optional<Error>& error, bool was_applied);
  void release();
};

}  // namespace cohort::server
