// SPDX-License-Identifier: Apache-2.0
// Which ready worker gets the next closure: the least loaded, among equals the one that has been so
// longest.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "cohort/coordinator/closure_queue.h"

namespace cohort::coordinator::internal {

// Every operation but least_loaded takes constant time; that one looks at `limit` loads. Used only
// from ClosureQueue.
class WorkerLoads {
 public:
  // No worker takes more than `limit` closures.
  WorkerLoads(std::size_t workers, std::size_t limit);

  std::size_t size() const { return workers_; }
  bool is_ready(WorkerId worker) const { return nodes_[worker].is_ready; }
  bool has_slot(WorkerId worker) const { return is_ready(worker) && nodes_[worker].load < limit_; }
  void set_ready(WorkerId worker);
  // Forgets its load.
  void set_lost(WorkerId worker);
  void add(WorkerId worker);
  void remove(WorkerId worker);
  // Of the ready workers with a free slot.
  std::optional<WorkerId> least_loaded() const;

 private:
  // The workers of one load form a ring through its head, which is node workers_ + load.
  struct Node {
    std::size_t previous = 0;
    std::size_t next = 0;
    std::size_t load = 0;
    bool is_ready = false;
  };

  void unlink(WorkerId worker);
  void link_last(WorkerId worker);

  std::size_t workers_;
  std::size_t limit_;
  std::vector<Node> nodes_;
};

}  // namespace cohort::coordinator::internal
