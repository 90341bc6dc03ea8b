// SPDX-License-Identifier: Apache-2.0
// State beside variables that the workers of a job must have alike: that of an optimizer. And who
// has values for such a state, or for a variable, before a program has made it.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/amortized_sweep.h"
#include "cohort/core/bytes.h"
#include "cohort/core/export.h"
#include "cohort/core/mutex.h"
#include "cohort/variable/variable_state.h"

namespace cohort {

class Variable;

// A home of variables knows those that belong to them (VariableHome::attach()), and hands them over
// with the values. Used while no step runs.
class COHORT_API AttachedState {
 public:
  virtual ~AttachedState() = default;
  // Equal in all workers, which make the same program, and in a process that starts again.
  virtual std::string key() const = 0;
  virtual Bytes save() const = 0;
  // Throws invalid_argument for the state of something else. Then it may be changed in part.
  virtual void load(std::span<const std::byte> state) = 0;
  // Distinguishes optimizers; empty for other states. The texts live as long as the state.
  struct OptimizerId {
    std::string_view name = {};
    std::string_view rule = {};
    std::string_view first_variable = {};
  };
  virtual OptimizerId id() const { return {}; }
  // Where the states of the replicas differ, for a message; empty if they do not.
  virtual std::string difference() const { return {}; }
  // The settings that must be equal on all workers in a step of this optimizer, beside its
  // hyperparameters; for messages, too. Its name is not among them: workers that are threads share
  // one count of unnamed optimizers. Empty for other optimizers.
  virtual std::string alike_in_steps(std::string_view optimizer) const {
    static_cast<void>(optimizer);
    return {};
  }
};

// The states of the optimizers of a home's variables. Thread-safe.
class COHORT_API AttachedStates {
 public:
  void add(const std::shared_ptr<AttachedState>& state);
  std::vector<std::shared_ptr<AttachedState>> all() const;
  // For messages and comparisons of workers: the rule, and a number if there are optimizers of this
  // rule for the same variables that were made before. Workers may have other names for it.
  std::string step_of(const SlotKey& key) const;
  // AttachedState::alike_in_steps() of all.
  std::string alike_in_steps(std::string_view optimizer) const;

 private:
  mutable Mutex mutex_;
  std::vector<std::weak_ptr<AttachedState>> states_ COHORT_GUARDED_BY(mutex_);
  internal::AmortizedSweep sweep_ COHORT_GUARDED_BY(mutex_);
};

// Knows values for variables and states that are made later: a checkpoint. The methods are called
// on the thread that makes the object, before anybody else has it, and by all processes that have
// it. An error that they throw is thrown in the place of the object.
class COHORT_API CreationWatch {
 public:
  virtual ~CreationWatch() = default;
  virtual void note_made(const Variable& variable) = 0;
  virtual void note_made(AttachedState& state) = 0;
};

// The watches of one home. Costs one load of an atomic where there are none. Thread-safe.
class COHORT_API CreationWatches {
 public:
  void add(const std::shared_ptr<CreationWatch>& watch);
  template <class T>
  void announce(T& made) const {
    if (!may_have_some_.load(std::memory_order_acquire)) return;
    for (const std::shared_ptr<CreationWatch>& each : all()) each->note_made(made);
  }

 private:
  std::vector<std::shared_ptr<CreationWatch>> all() const;

  std::atomic<bool> may_have_some_ = false;
  mutable Mutex mutex_;
  std::vector<std::weak_ptr<CreationWatch>> watches_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort
