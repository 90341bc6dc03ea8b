// SPDX-License-Identifier: Apache-2.0
// What a coordinator keeps of each closure that has not ended.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "cohort/coordinator/detail/closure_queue.h"
#include "cohort/coordinator/internal/epoch_run.h"
#include "cohort/coordinator/internal/kept_arguments.h"
#include "cohort/coordinator/internal/remote_state.h"
#include "cohort/coordinator/internal/step_function.h"
#include "cohort/core/error.h"
#include "cohort/core/nest.h"
#include "cohort/variable/detail/hyperparameter.h"

namespace cohort::coordinator {

// Used only under the coordinator's lock, once it is scheduled.
struct PendingClosure {
  std::shared_ptr<StepFunction> function;
  std::vector<Nest> resources;
  internal::KeptArguments arguments;
  std::vector<at::Tensor> captured;  // inputs behind the arguments
  std::uint64_t captured_at = 0;     // hyperparameter_time()
  CountedUpdates counted;            // what the captured ones have taken
  std::weak_ptr<RemoteState> result;
  // What its worker has reported: the elements that the traced program must fit, or outputs,
  // until the queue's word.
  std::vector<at::Tensor> reported;
  std::uint32_t worker = 0;      // for which it was dispatched last
  std::uint64_t connection = 0;  // the number of the worker's connection then; 0: not yet
  bool waits_for_program = false;
  bool is_retried = false;  // an earlier attempt may have pushed its updates
  std::uint32_t runs = 0;   // attempts that may have made them
  EpochPlace in_epoch;

  // Of an epoch's step, when it is sent for the first time: steps that wait may never run, and
  // others go before them. Returns false, and the epoch has the error, if a learning rate has no
  // value.
  bool capture_for_step();
  // Adds what traces have captured since its schedule(), as it was then. Returns false if that is
  // not known.
  bool add_captured();
  // Of an epoch's step that has ended.
  void end_step(const std::optional<Error>& error);
  // Fails the result of a closure that the queue does not know any more.
  void abandon(const Error& error);
};

// Used only under the coordinator's lock.
class PendingClosures {
 public:
  using Map = std::unordered_map<ClosureId, PendingClosure>;

  void add(ClosureId closure, PendingClosure&& pending);
  // nullptr: it has ended.
  PendingClosure* find(ClosureId closure);
  Map::iterator locate(ClosureId closure) { return pending_.find(closure); }
  Map::iterator end() { return pending_.end(); }
  const Map& all() const { return pending_; }
  std::size_t size() const { return pending_.size(); }
  // Another id; nothing, if the closure has ended.
  void renumber(ClosureId closure, ClosureId id);
  void erase(ClosureId closure) { pending_.erase(closure); }
  // Erases it, and uses its memory again.
  void retire(Map::iterator closure);
  Map take_all() { return std::exchange(pending_, {}); }

 private:
  Map pending_;
  // Memory to use again: it comes from callers' threads and goes on channels', which allocators pay
  // for.
  std::vector<Map::node_type> spare_;
};

}  // namespace cohort::coordinator
