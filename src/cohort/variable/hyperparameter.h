// SPDX-License-Identifier: Apache-2.0
// A number that steps read and the surrounding program may change: a 0-dim float64 tensor.
//
//   at::Tensor rate = make_hyperparameter(0.1);   // captured by a trace, read at every call
//   set_hyperparameter(rate, 0.05);               // from any thread, while others schedule
//
// Its memory is read and written atomically by these functions; a message needs a snapshot, since
// the tensor itself may have changed by the time the message is sent.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/core/mutex.h"

namespace cohort {

COHORT_API at::Tensor make_hyperparameter(double value);
COHORT_API void set_hyperparameter(const at::Tensor& hyperparameter, double value);
// The value of any 0-dim tensor; invalid_argument for another shape.
COHORT_API double hyperparameter_value(const at::Tensor& hyperparameter);
// A copy that no longer changes. A tensor that is no hyperparameter is cloned.
COHORT_API at::Tensor hyperparameter_snapshot(const at::Tensor& value);

// How often hyperparameters of this process have changed. Remember it to ask later for a value as
// of that time.
COHORT_API std::uint64_t hyperparameter_time() noexcept;
// As above, with the value as of `time`. Undefined if that is no longer known: each hyperparameter
// keeps its last 4096 changes.
COHORT_API at::Tensor hyperparameter_snapshot(const at::Tensor& value, std::uint64_t time);

// Whether the value depends on the number of updates, as a learning-rate schedule's does.
COHORT_API bool varies_with_updates(const at::Tensor& hyperparameter);

class CountedUpdates;

// A count of updates, and hyperparameters whose values follow it (a learning-rate schedule, with
// tf.keras.optimizers.Optimizer.iterations as the count). The numbers are 0, 1, …; an update takes
// the lowest one that no other has. Thread-safe.
class COHORT_API UpdateCounter {
 public:
  // Called from any thread that counts or reads; it must not use this counter.
  using Value = std::function<double(std::int64_t count)>;
  // `varies`: not the same value for every count.
  explicit UpdateCounter(Value value, bool varies = true);
  ~UpdateCounter();
  UpdateCounter(const UpdateCounter&) = delete;
  UpdateCounter& operator=(const UpdateCounter&) = delete;

  // A value that follows from the number of an update and from its value(), such as the learning
  // rate of a group of variables. Returns its number among them: 1, 2, …
  using Derived = std::function<double(std::int64_t count, double value)>;
  std::size_t derive(Derived derived, bool varies);

  // For update `index` (0, 1, …) of one step: the value for the number that it would take now.
  // Always the same tensor. `derived`: 0, or the number of a derived value, which is read for that
  // update, but takes no number for it.
  at::Tensor hyperparameter(std::size_t index, std::size_t derived = 0);
  // For the next update; throws any exception of the function.
  double value() const;
  // Throws any exception of the functions, also of derived values, for the next update.
  void check() const;
  void set_value(Value value, bool varies = true);
  // How many updates have a number.
  std::int64_t count() const;
  // The number that the next update takes: at most count().
  std::int64_t next_number() const;
  // The next update takes number `count`, the one after it the next number, and so on.
  void set_count(std::int64_t count);
  // Counts an update made in this process.
  void add_one();

 private:
  class State;
  class CountedCell;
  friend class CountedUpdates;
  friend bool varies_with_updates(const at::Tensor&);
  friend std::vector<at::Tensor> hyperparameters_of_step(std::span<const at::Tensor>,
                                                         CountedUpdates&);
  const std::shared_ptr<State> state_;
  Mutex tensors_mutex_;  // locked before that of the state
  // By the number of the derived value, and the update.
  std::map<std::pair<std::size_t, std::size_t>, at::Tensor> tensors_
      COHORT_GUARDED_BY(tensors_mutex_);
};

// The numbers that one step has taken from counters. A step that makes no updates gives them back
// when this object goes, and later updates take them, so that no number is left out; numbers of
// before a set_count() are forgotten. Thread-compatible.
class COHORT_API CountedUpdates {
 public:
  CountedUpdates() = default;
  ~CountedUpdates() { give_back(); }
  CountedUpdates(CountedUpdates&& other) noexcept : taken_(std::move(other.taken_)) {}
  CountedUpdates& operator=(CountedUpdates&& other) noexcept {
    if (this == &other) return *this;
    give_back();
    taken_ = std::move(other.taken_);
    return *this;
  }
  // Takes one more number if `hyperparameter` is one of a counter: the step has its value already.
  void take_also(const at::Tensor& hyperparameter);
  // The step has made its updates, or may have: its numbers are taken for good.
  void keep() { taken_.clear(); }

 private:
  friend class UpdateCounter;
  friend std::vector<at::Tensor> hyperparameters_of_step(std::span<const at::Tensor>,
                                                         CountedUpdates&);
  struct Taken {
    std::shared_ptr<UpdateCounter::State> counter;
    std::int64_t number = 0;
    std::uint64_t numbering = 0;
  };
  void give_back() noexcept {
    if (!taken_.empty()) give_all_back();
  }
  void give_all_back() noexcept;
  c10::SmallVector<Taken, 1> taken_;
};

// Snapshots for one step that is about to be sent, in this order. Each hyperparameter of a counter,
// once if it is there several times, takes a number from it at the same moment, so that no two
// steps get the same one; `counted`
// becomes what this step has taken. Throws any exception of a counter's function, and has taken
// nothing then.
COHORT_API std::vector<at::Tensor> hyperparameters_of_step(
    std::span<const at::Tensor> hyperparameters, CountedUpdates& counted);

}  // namespace cohort
