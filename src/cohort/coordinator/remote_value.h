// SPDX-License-Identifier: Apache-2.0
// The result of a scheduled function, when it comes (tf's RemoteValue).
#pragma once

#include <memory>

#include "cohort/core/clock.h"
#include "cohort/core/nest.h"

namespace cohort {

namespace coordinator {
class RemoteState;  // coordinator/internal/remote_state.h
}

// A shared handle. Thread-safe. Dropping it does not cancel the work. Each fetch() gives the same
// tensors: clone() them before writing there.
class COHORT_API RemoteValue {
 public:
  explicit RemoteValue(std::shared_ptr<coordinator::RemoteState> state)
      : state_(std::move(state)) {}
  // To be put into a nest for ClusterCoordinator::fetch().
  operator Nest() const;  // NOLINT: a remote value is a leaf

  // Waits, then gives the function's result, or throws its error (as often as asked). Without a
  // deadline it gives up when no closure of the coordinator has ended for the data timeout:
  // deadline_exceeded, naming the worker that has its closure, or those that owe one. With one it
  // does so when that has passed, too; the work goes on.
  Nest fetch() const;
  Nest fetch(Deadline deadline) const;
  bool is_ready() const;

 private:
  std::shared_ptr<coordinator::RemoteState> state_;
};

}  // namespace cohort
