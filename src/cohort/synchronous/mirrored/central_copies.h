// SPDX-License-Identifier: Apache-2.0
// The copies of central values with which the replicas of a home compute.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/core/thread_value.h"
#include "cohort/synchronous/central_values.h"
#include "cohort/synchronous/mirrored/mirrored_variable.h"
#include "cohort/synchronous/mirrored/value_updates.h"
#include "cohort/variable/variable.h"

namespace cohort::internal {

class MirroredHome;

// Thread-safe, as far as the variables are.
class CentralCopies {
 public:
  explicit CentralCopies(std::shared_ptr<CentralValues> values) : values_(std::move(values)) {}

  CentralValues& values() const { return *values_; }
  // Whether a run computes with the copies: a replica, a meeting of replicas or a traced step.
  bool are_in_use() const { return open_runs_ > 0; }
  // Whether the run compares copies of trainable variables, too, bit by bit: the first, second,
  // fourth, … run finds what LibTorch counts as no write, such as one through data().
  bool compares_all() const { return compares_all_; }
  void add(std::span<const CentralRequest> requests);
  // Change the values, and then the copies.
  void apply(const SlotKey& key, const std::vector<ValueUpdate>& updates);
  void write(MirroredVariable& variable, const VariableWrite& write);

  // While it exists, the run of this thread sends changes later: together with the next ones that
  // are made outside of it, or at its end. Nothing may read the copies of their variables in this
  // run any more.
  class Later {
   public:
    Later();

   private:
    const ScopedValue<bool> is_later_;
  };

  // Around a run, on its thread: fetches all values when it begins. If runs overlap, only the first
  // one does, since the others compute with the same copies.
  class Run {
   public:
    // nullptr: does nothing.
    explicit Run(MirroredHome* home);
    ~Run();
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;
    // At the end of a run without an error: sends what is left to send, and assigns what the run
    // has written into the copies in place. Throws invalid_argument for a trainable variable.
    void finish();

   private:
    friend class CentralCopies;
    void send_later();
    // Changes that are sent later.
    std::vector<CentralChange> later_;
    MirroredHome* const home_;
    const ScopedValue<Run*> current_;
    bool has_finished_ = false;
  };

 private:
  // Brings the current values into the copies, as far as these are others.
  void fetch(std::span<const Variable> variables) COHORT_REQUIRES(mutex_);
  // Makes the changes, after those that the run of this thread has kept for later; or keeps them,
  // too. `has_left`: some are what the run has left in copies, which must not be found again.
  void change(std::vector<CentralChange> changes, bool has_left);
  // The run of this thread; nullptr: none with these copies.
  Run* run_here() const;
  void send(std::vector<CentralChange> changes, std::size_t unread);

  const std::shared_ptr<CentralValues> values_;
  Mutex mutex_;
  std::uint64_t fetches_ COHORT_GUARDED_BY(mutex_) = 0;
  std::atomic<bool> compares_all_ = false;
  std::atomic<int> open_runs_ = 0;  // changed with the mutex, which may be held for long
};

}  // namespace cohort::internal
