// SPDX-License-Identifier: Apache-2.0
// Picks the ready worker for the next closure: the least loaded one; among equals, the one whose
// load has been unchanged longest.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "cohort/coordinator/queue/closure_queue.h"

namespace cohort::coordinator::internal {

// Every operation takes constant time, amortised. Used only from ClosureQueue.
class WorkerLoads {
 public:
  // No worker takes more than `limit` closures.
  WorkerLoads(std::size_t workers, std::size_t limit);

  std::size_t size() const { return workers_; }
  bool is_ready(WorkerId worker) const { return nodes_[worker].is_ready; }
  bool has_slot(WorkerId worker) const {
    return is_ready(worker) && nodes_[worker].load < nodes_[worker].limit;
  }
  // Sets the limit of one worker, which may already have more closures.
  void set_limit(WorkerId worker, std::size_t limit);
  void set_ready(WorkerId worker);
  // The worker's load is forgotten.
  void set_lost(WorkerId worker);
  void add(WorkerId worker);
  void remove(WorkerId worker);
  // Among ready workers with a free slot.
  std::optional<WorkerId> least_loaded();

 private:
  // Ready workers with the same load form a ring through its head, node workers_ + 1 + load; those
  // without a free slot form a ring through node workers_.
  struct Node {
    std::size_t previous = 0;
    std::size_t next = 0;
    std::size_t load = 0;
    std::size_t limit = 0;
    bool is_ready = false;
  };

  std::size_t head_of(const Node& node) const {
    return node.load < node.limit ? workers_ + 1 + node.load : workers_;
  }
  void provide_heads(std::size_t limit);
  void unlink(WorkerId worker);
  void link_last(WorkerId worker);

  std::size_t workers_;
  std::vector<Node> nodes_;
  std::size_t lowest_ = 0;  // no worker with a free slot has a smaller load
};

}  // namespace cohort::coordinator::internal
