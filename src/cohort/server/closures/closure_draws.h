// SPDX-License-Identifier: Apache-2.0
// Draws the elements of closures from the worker's iterators.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "cohort/data/element.h"
#include "cohort/rpc/messages.h"
#include "cohort/server/closures/function_table.h"
#include "cohort/server/closures/iterator_table.h"
#include "cohort/server/closures/running_closure.h"

namespace cohort::server {

// Thread-compatible. Used only by the thread that runs a closure.
class ClosureDraws {
 public:
  using Draws = std::vector<Fields>;

  ClosureDraws(IteratorTable& iterators, std::int64_t worker_index)
      : iterators_(iterators), worker_index_(worker_index) {}

  // The elements that were parked for this closure, or new ones. Returns nothing for a step of an
  // epoch for which there is no element.
  std::optional<Draws> draw(const rpc::ClosureCall& call, const WorkerFunction& function,
                            RunningClosure& running);
  // Keeps the elements until the closure comes again with a program, or is below the watermark.
  void park(std::uint64_t closure_id, Draws draws, std::uint64_t low_watermark);

 private:
  Fields draw_one(const rpc::ClosureCall& call, const WorkerFunction& function,
                  std::int64_t resource);
  std::optional<Fields> draw_for_epoch(const rpc::ClosureCall& call, const WorkerFunction& function,
                                       std::uint64_t number, RunningClosure& running);

  IteratorTable& iterators_;
  const std::int64_t worker_index_;
  std::unordered_map<std::uint64_t, Draws> parked_;
};

}  // namespace cohort::server
