// SPDX-License-Identifier: Apache-2.0
// The state that a worker has received from another one, and that its program has not created yet.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "cohort/core/bytes.h"
#include "cohort/core/mutex.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/variable/state_walk.h"

namespace cohort::internal {

// A program that begins again creates its variables and optimizers as it did the first time, and
// gets here what the others have in place of initial values. That ends with its first run: what the
// others do to a variable that this program has not created is not known here. Thread-safe.
class ReceivedState {
 public:
  // `awaits_first_run`: this program has begun again, and has run nothing yet; the others have
  // something. `source`: whose state it is.
  void keep(HomeState state, bool awaits_first_run, std::string source);
  // Whether the values are newer than what the program saved before.
  bool awaits_first_run() const { return phase_ == Phase::before_first_run; }
  // The values for a new variable; nullopt: there are none, and it is created as if nothing had
  // been received. Throws failed_precondition before the first run if the others have no such
  // variable; invalid_argument if theirs has another dtype or shape.
  std::optional<VariableRecord> find(const std::string& name, const TensorSpec& spec) const;
  // The variable has been created.
  void forget(const std::string& name);
  // The same for an AttachedState; `is_used`: it was created.
  std::optional<Bytes> find_attached(const std::string& key);
  // All that is kept.
  HomeState kept() const;

  void begin_run() {
    if (phase_ == Phase::before_first_run) phase_ = Phase::in_first_run;
  }
  // Drops what is left, with a warning.
  void finish_run() {
    if (phase_ == Phase::in_first_run) drop();
  }

 private:
  enum class Phase : std::uint8_t { nothing, before_first_run, in_first_run };
  void drop();

  std::atomic<Phase> phase_ = Phase::nothing;
  mutable Mutex mutex_;
  HomeState state_ COHORT_GUARDED_BY(mutex_);
  std::map<std::string, bool> is_used_ COHORT_GUARDED_BY(mutex_);  // of state_.attached
  std::string source_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::internal
