// SPDX-License-Identifier: Apache-2.0
// Drops the variables of a strategy that nothing uses any more: their names become free, and their
// servers free their memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/core/start_thread.h"
#include "cohort/parameter_server/placement_table.h"
#include "cohort/parameter_server/server_links.h"
#include "cohort/variable/variable.h"
#include "cohort/variable/variable_table.h"

namespace cohort::detail {

// Handles end on any thread, under any locks, so they only wake a thread of this object. That
// thread never waits for a server: it sends the numbers of the variables, all that have gathered in
// one message to each server, and does not await the answers.
//
// A message may be lost with its connection. Then the server keeps the memory until the strategy
// ends, but nothing else depends on it: a number is never given to another variable, so a new
// variable of the same name meets neither the value nor a late push of an old one.
//
// Thread-safe.
class UnusedVariables {
 public:
  // Tries to lock out whoever may hold references to stand-ins without owning them, as a trace
  // does. Returns whether `body` ran.
  using TryAlone = std::function<bool(const std::function<void()>& body)>;
  // All must outlive it.
  UnusedVariables(VariableTable& variables, parameter_server::PlacementTable& placement,
                  const parameter_server::ServerLinks& servers, TryAlone try_alone);
  ~UnusedVariables();
  UnusedVariables(const UnusedVariables&) = delete;
  UnusedVariables& operator=(const UnusedVariables&) = delete;

  // The handle for users. While it exists, or anything else refers to the variable or its stand-in,
  // the variable is kept. Starts the thread at the first call.
  Variable handle_of(const Variable& variable);
  // Removes the variables that are unused now from the tables, so that their names are free. Costs
  // little if no handle has ended since the last call.
  void collect();
  // Waits, for a second at most, until this name is free if its variable has no handle any more: a
  // message, or another thread, may refer to the stand-in for a moment.
  void await_free(std::string_view name);
  // The servers shall drop what they have of these slices, or the snapshots of these numbers.
  void drop(const std::vector<rpc::Slice>& slices);

 private:
  // Shared with the handles, which may outlive the strategy.
  struct Ends {
    Mutex mutex;
    Condition changed;
    bool has_news COHORT_GUARDED_BY(mutex) = false;
    bool is_stopping COHORT_GUARDED_BY(mutex) = false;
    std::atomic<std::uint64_t> count{0};  // of handles that have ended
    void note() noexcept;
  };
  void run();
  void send();
  std::vector<VariableTable::EntryPtr> take_unused() COHORT_REQUIRES(looking_);

  VariableTable& variables_;
  parameter_server::PlacementTable& placement_;
  const parameter_server::ServerLinks& servers_;
  const TryAlone try_alone_;
  const std::shared_ptr<Ends> ends_ = std::make_shared<Ends>();
  // Held while a thread looks, so that another one that makes a variable finds the result.
  Mutex looking_;
  std::uint64_t looked_after_ COHORT_GUARDED_BY(looking_) = 0;  // Ends::count at the last look
  // Whether a variable without a handle is still there, because something else refers to it.
  std::atomic<bool> must_look_again_{false};
  Mutex mutex_;
  // To be sent.
  std::vector<rpc::Slice> dropped_ COHORT_GUARDED_BY(mutex_);
  bool is_started_ COHORT_GUARDED_BY(mutex_) = false;
  JoinedThreads thread_;
};

}  // namespace cohort::detail
