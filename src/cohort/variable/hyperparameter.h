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

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cohort/core/export.h"

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

// A count of updates, and hyperparameters whose values follow it (a learning-rate schedule, with
// tf.keras.optimizers.Optimizer.iterations as the count). Thread-safe.
class COHORT_API UpdateCounter {
 public:
  // Called from any thread that counts or reads; it must not use this counter.
  using Value = std::function<double(std::int64_t count)>;
  explicit UpdateCounter(Value value);
  ~UpdateCounter();
  UpdateCounter(const UpdateCounter&) = delete;
  UpdateCounter& operator=(const UpdateCounter&) = delete;

  // For update `index` (0, 1, …) of one step: value(count() + index). Always the same tensor.
  at::Tensor hyperparameter(std::size_t index);
  // value(count()); throws any exception of the function.
  double value() const;
  void set_value(Value value);
  std::int64_t count() const;
  void set_count(std::int64_t count);
  // Counts an update made in this process.
  void add_one();

 private:
  class State;
  class CountedCell;
  friend std::vector<at::Tensor> hyperparameters_of_step(std::span<const at::Tensor>);
  friend void uncount_step(std::span<const at::Tensor>);
  const std::shared_ptr<State> state_;
};

// Snapshots for one step that is about to be sent, in this order. Each counter advances at the same
// moment, by the number of its hyperparameters among these, so that no two steps get the same
// count. Throws any exception of a counter's function.
COHORT_API std::vector<at::Tensor> hyperparameters_of_step(
    std::span<const at::Tensor> hyperparameters);
// Reverses the count of a step that made no updates, since there was no element for it.
COHORT_API void uncount_step(std::span<const at::Tensor> hyperparameters);

}  // namespace cohort
