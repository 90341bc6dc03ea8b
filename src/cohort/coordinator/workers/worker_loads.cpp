// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/workers/worker_loads.h"

#include <algorithm>

namespace cohort::coordinator::internal {

WorkerLoads::WorkerLoads(std::size_t workers, std::size_t limit)
    : workers_(workers), nodes_(workers) {
  provide_heads(limit);
  for (std::size_t worker = 0; worker < workers; ++worker) {
    nodes_[worker] = {.previous = worker, .next = worker, .limit = limit};
  }
}

void WorkerLoads::provide_heads(std::size_t limit) {
  for (std::size_t head = nodes_.size(); head < workers_ + 1 + limit; ++head) {
    nodes_.push_back({.previous = head, .next = head});
  }
}

void WorkerLoads::set_limit(WorkerId worker, std::size_t limit) {
  if (nodes_[worker].limit == limit) return;
  provide_heads(limit);
  const std::size_t before = head_of(nodes_[worker]);
  nodes_[worker].limit = limit;
  if (!is_ready(worker) || head_of(nodes_[worker]) == before) return;
  unlink(worker);
  link_last(worker);
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

std::optional<WorkerId> WorkerLoads::least_loaded() {
  for (; workers_ + 1 + lowest_ < nodes_.size(); ++lowest_) {
    const std::size_t first = nodes_[workers_ + 1 + lowest_].next;
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
  const std::size_t head = head_of(node);
  node.previous = nodes_[head].previous;
  node.next = head;
  nodes_[node.previous].next = worker;
  nodes_[head].previous = worker;
  if (head != workers_) lowest_ = std::min(lowest_, node.load);
}

}  // namespace cohort::coordinator::internal
