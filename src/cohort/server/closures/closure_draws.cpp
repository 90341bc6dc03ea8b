// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/closures/closure_draws.h"

#include <algorithm>

#include "cohort/core/error.h"
#include "cohort/function/step_scope.h"

namespace cohort::server {
namespace {

std::uint64_t resource_of(const rpc::ClosureCall& call, const WorkerFunction& function,
                          std::int64_t resource) {
  COHORT_CHECK(resource >= 0 && static_cast<std::size_t>(resource) < call.resources.size(),
               ErrorCode::invalid_argument, "[server.run] function '", function.name,
               "' draws from resource ", resource, ", got ", call.resources.size(), " resources");
  return call.resources[static_cast<std::size_t>(resource)];
}

}  // namespace

std::optional<ClosureDraws::Draws> ClosureDraws::draw(const rpc::ClosureCall& call,
                                                      const WorkerFunction& function,
                                                      RunningClosure& running) {
  const auto parked = parked_.find(call.closure_id);
  if (parked != parked_.end()) return std::move(parked_.extract(parked).mapped());
  // A closure depends on all its resources, whether it draws from them or not.
  for (const std::uint64_t resource : call.resources) iterators_.find(resource)->check_usable();
  Draws draws(function.draws.size());
  // The epoch's elements are drawn first, so that a step that finds their end draws nothing from
  // other iterators.
  std::uint64_t epoch_draws = 0;
  for (std::size_t i = 0; call.epoch_step && i < draws.size(); ++i) {
    if (function.draws[i] != 0) continue;
    std::optional<Fields> fields = draw_for_epoch(call, function, epoch_draws++, running);
    if (!fields) return std::nullopt;
    draws[i] = std::move(*fields);
  }
  for (std::size_t i = 0; i < draws.size(); ++i) {
    if (function.draws[i] != 0 || !call.epoch_step)
      draws[i] = draw_one(call, function, function.draws[i]);
  }
  return draws;
}

Fields ClosureDraws::draw_one(const rpc::ClosureCall& call, const WorkerFunction& function,
                              std::int64_t resource) {
  if (resource == function::kWorkerIndexResource)
    return {function::worker_index_tensor(worker_index_)};
  return iterators_.find(resource_of(call, function, resource))->next();
}

// The element for draw `number` of the step. If a step draws several elements, there must be all of
// them or none.
std::optional<Fields> ClosureDraws::draw_for_epoch(const rpc::ClosureCall& call,
                                                   const WorkerFunction& function,
                                                   std::uint64_t number, RunningClosure& running) {
  const auto draws = static_cast<std::uint64_t>(
      std::count(function.draws.begin(), function.draws.end(), std::int64_t{0}));
  const std::uint64_t first = *call.epoch_step * draws;
  const auto iterator = iterators_.find(resource_of(call, function, 0));
  running.files = iterator->files();
  std::optional<Fields> fields = iterator->at(first + number);
  COHORT_CHECK(fields || number == 0, ErrorCode::out_of_range, "[server.iterator_next] expected ",
               draws, " elements for each step of '", function.name,
               "', got the end of this worker's data after ", first + number,
               " elements; draw one element a step, or give each worker a multiple of ", draws);
  return fields;
}

void ClosureDraws::park(std::uint64_t closure_id, Draws draws, std::uint64_t low_watermark) {
  std::erase_if(parked_, [&](const auto& entry) { return entry.first < low_watermark; });
  parked_[closure_id] = std::move(draws);
}

}  // namespace cohort::server
