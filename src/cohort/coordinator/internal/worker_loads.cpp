// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/internal/worker_loads.h"

namespace cohort::coordinator::internal {

WorkerLoads::WorkerLoads(std::size_t workers, std::size_t limit)
    : workers_(workers), limit_(limit), nodes_(workers + limit + 1) {
  for (std::size_t node = 0; node < nodes_.size(); ++node) nodes_[node] = {node, node};
}

void WorkerLoads::set_ready(WorkerId worker) {
  nodes_[worker].is_ready = true;
  nodes_[worker].load = 0;
  link_last(worker);
}

void WorkerLoads::set_lost(WorkerId worker) {
  unlink(worker);
  nodes_[worker].is_ready = false;
}

void WorkerLoads::add(WorkerId worker) {
  COHORT_ASSERT(has_slot(worker));
  unlink(worker);
  ++nodes_[worker].load;
  link_last(worker);
}

void WorkerLoads::remove(WorkerId worker) {
  COHORT_ASSERT(is_ready(worker) && nodes_[worker].load > 0);
  unlink(worker);
  --nodes_[worker].load;
  link_last(worker);
}

std::optional<WorkerId> WorkerLoads::least_loaded() const {
  for (std::size_t load = 0; load < limit_; ++load) {
    const std::size_t first = nodes_[workers_ + load].next;
    if (first < workers_) return static_cast<WorkerId>(first);
  }
  return std::nullopt;
}

void WorkerLoads::unlink(WorkerId worker) {
  const Node& node = nodes_[worker];
  nodes_[node.previous].next = node.next;
  nodes_[node.next].previous = node.previous;
}

void WorkerLoads::link_last(WorkerId worker) {
  Node& node = nodes_[worker];
  const std::size_t head = workers_ + node.load;
  node.previous = nodes_[head].previous;
  node.next = head;
  nodes_[node.previous].next = worker;
  nodes_[head].previous = worker;
}

}  // namespace cohort::coordinator::internal
