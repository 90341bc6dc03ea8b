// SPDX-License-Identifier: Apache-2.0
// The data that a coordinator keeps for each closure that has not ended.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cohort/coordinator/epochs/epoch_run.h"
#include "cohort/coordinator/functions/kept_arguments.h"
#include "cohort/coordinator/functions/step_function.h"
#include "cohort/coordinator/queue/closure_deadlines.h"
#include "cohort/coordinator/queue/closure_queue.h"
#include "cohort/coordinator/runtime/remote_state.h"
#include "cohort/core/error.h"
#include "cohort/core/nest.h"
#include "cohort/variable/hyperparameter.h"

namespace cohort::coordinator {

// After schedule(), used only under the coordinator's lock.
struct PendingClosure {
  std::shared_ptr<StepFunction> function;
  std::vector<Nest> resources;
  internal::KeptArguments arguments;
  std::vector<at::Tensor> captured;  // inputs that follow the arguments
  std::uint64_t captured_at = 0;     // hyperparameter_time() of `captured`
  CountedUpdates counted;            // the updates that are counted for `captured`
  std::weak_ptr<RemoteState> result;
  // Reported by its worker: the elements that a new program must fit, or outputs, until the queue
  // has decided.
  std::vector<at::Tensor> reported;
  std::uint32_t worker = 0;  // to which it was last dispatched
  // The number of the worker's connection then; 0: not dispatched yet.
  std::uint64_t connection = 0;
  bool waits_for_program = false;
  bool is_retried = false;  // an earlier attempt may have pushed its updates
  std::uint32_t runs = 0;   // attempts that may have pushed updates
  EpochPlace in_epoch;
  std::int32_t priority = 0;
  std::optional<ClosureDeadline> deadline = {};

  // Captures the hyperparameters of an epoch's step when it is first sent, since waiting steps may
  // never run, and other closures may be sent before them. Returns false, and sets the epoch's
  // error, if the function of a learning rate throws.
  bool capture_for_step();
  // Adds the values that traces have captured since its schedule(), as they were then. Returns
  // false if they are no longer known.
  bool add_captured();
  // Notes in its epoch that a step has ended.
  void end_step(const std::optional<Error>& error);
  // Fails the result of a closure that the queue does not know any more.
  void abandon(const Error& error);
};

// Used only under the coordinator's lock.
class PendingClosures {
 public:
  using Map = std::unordered_map<ClosureId, PendingClosure>;

  void add(ClosureId closure, PendingClosure&& pending);
  // Returns nullptr if the closure has ended.
  PendingClosure* find(ClosureId closure);
  Map::iterator locate(ClosureId closure) { return pending_.find(closure); }
  Map::iterator end() { return pending_.end(); }
  const Map& all() const { return pending_; }
  std::size_t size() const { return pending_.size(); }
  // Whether arguments of so many bytes may be added: with those that are here, they are at most
  // `bytes_max` (0: no limit), or nothing is here.
  bool has_room_for(std::uint64_t bytes, std::int64_t bytes_max) const {
    const auto max = static_cast<std::uint64_t>(bytes_max);
    return bytes == 0 || max == 0 || bytes_ == 0 || bytes_ + bytes <= max;
  }
  // Changes the id. Does nothing if the closure has ended.
  void renumber(ClosureId closure, ClosureId id);
  void erase(ClosureId closure);
  // Erases it and keeps its memory for another closure.
  void retire(Map::iterator closure);
  Map take_all() {
    bytes_ = 0;
    return std::exchange(pending_, {});
  }

 private:
  Map pending_;
  std::uint64_t bytes_ = 0;  // of the arguments of all
  // Memory for reuse: it is allocated on callers' threads and freed on channels', which is
  // expensive for allocators.
  std::vector<Map::node_type> spare_;
};

}  // namespace cohort::coordinator
