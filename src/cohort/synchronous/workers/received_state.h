// SPDX-License-Identifier: Apache-2.0
// What a worker has received of the state of another one, and its program has not created yet.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/mutex.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/variable/variable_state.h"

namespace cohort::internal {

class MirroredVariable;

// The values of a variable with the slots of its optimizers.
struct HandedVariable {
  struct Value {
    at::Tensor tensor = {};
    VariableState::Slots slots = {};
  };
  TensorSpec spec = {};
  // One that all replicas of all workers have, or one for each replica of a worker.
  std::vector<Value> values = {};
};

// Gives the variable these values and slots. The tensors may be its own.
void fill(MirroredVariable& variable, const HandedVariable& handed);

struct HandedState {
  std::map<std::string, HandedVariable> variables = {};
  std::map<std::string, Bytes> attached = {};  // AttachedState, by key
  bool is_empty() const { return variables.empty() && attached.empty(); }
};

// A program that begins again creates its variables and optimizers as it did the first time, and
// gets here what the others have in place of initial values. That ends with its first run: what the
// others do to a variable that this program has not created is not known here. Thread-safe.
class ReceivedState {
 public:
  // `awaits_first_run`: this program has begun again, and has run nothing yet; the others have
  // something. `source`: whose state it is.
  void keep(HandedState state, bool awaits_first_run, std::string source);
  // Whether the values are newer than what the program saved before.
  bool awaits_first_run() const { return phase_ == Phase::before_first_run; }
  // The values for a new variable; nullopt: there are none, and it is created as if nothing had
  // been received. Throws failed_precondition before the first run if the others have no such
  // variable; invalid_argument if theirs has another dtype or shape.
  std::optional<HandedVariable> find(const std::string& name, const TensorSpec& spec) const;
  // The variable has been created.
  void forget(const std::string& name);
  // The same for an AttachedState; `is_used`: it was created.
  std::optional<Bytes> find_attached(const std::string& key);
  // All that is kept.
  HandedState kept() const;

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
  HandedState state_ COHORT_GUARDED_BY(mutex_);
  std::map<std::string, bool> is_used_ COHORT_GUARDED_BY(mutex_);  // of state_.attached
  std::string source_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::internal
