// SPDX-License-Identifier: Apache-2.0
// Steps of optimizers of which each worker makes a share (MultiWorkerMirroredOptions,
// shard_optimizer_state).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/replicas/reduction.h"
#include "cohort/synchronous/workers/worker_gradients.h"
#include "cohort/variable/variable.h"
#include "cohort/variable/variable_state.h"

namespace cohort::internal {

class StrategyWorkers;

// A step is a reduce_scatter of the sums of gradients, an update of this worker's share of each
// value (shares.h), and an all_gather of the new values. Update rules compute each element alone,
// so the bits are those of a whole update. Slots exist once in a worker, for its share.
//
// Variables that are synchronized on read have other values on each worker, and are updated whole.
//
// Used by one thread at a time, in the calls of StrategyWorkers.
class ShardedUpdates {
 public:
  ShardedUpdates(std::shared_ptr<StrategyWorkers> workers, WorkerGradients& gradients);

  // One step, which all workers make. `what`, `sums` and `state`: as for
  // WorkerGradients::sum(). All components of the
  // variables get the new values. Throws invalid_argument if no replica of any worker has a
  // gradient; unimplemented for a variable of which one replica's component was written alone, and
  // failed_precondition after a step that has failed when a part of the slots was updated.
  void step(const SlotKey& key, std::string_view what, const std::vector<Variable>& variables,
            std::vector<Reduction::Parts>& sums, std::span<const double> hyper,
            const WorkerGradients::StateText& state);

  // Identifies the shares that the slots of this worker are: its place among the workers of its
  // last step, by their names. Without names, all slots are whole.
  struct Holder {
    std::vector<std::string> names = {};
    int own = 0;
    std::uint64_t steps = 0;  // that have updated slots
    // The last of them has not brought the new values.
    bool is_torn = false;
  };
  const Holder& holder() const { return holder_; }
  // All slots are whole now.
  void forget_shares() { holder_ = {}; }

 private:
  struct Part;
  struct Pack;

  void check(const SlotKey& key, const std::vector<Variable>& variables) const;
  std::vector<Part> parts_of(const SlotKey& key, const std::vector<Variable>& variables,
                             const std::vector<Reduction::Parts>& sums,
                             std::span<const double> hyper) const;
  void note_holder();

  const std::shared_ptr<StrategyWorkers> workers_;
  WorkerGradients& gradients_;
  Holder holder_;
  std::uint64_t group_number_ = 0;
};

}  // namespace cohort::internal
