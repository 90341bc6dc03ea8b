// SPDX-License-Identifier: Apache-2.0
// Closures that run in the coordinator's process (CoordinatorOptions::run_eagerly), as written.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "cohort/coordinator/closure_queue.h"
#include "cohort/coordinator/internal/iterator_handle.h"
#include "cohort/data/iterator.h"
#include "cohort/function/function.h"
#include "cohort/strategy/parameter_server_strategy.h"

namespace cohort::coordinator {

// What stays between them: the iterators of worker 0. Thread-compatible.
class EagerSteps {
 public:
  explicit EagerSteps(ParameterServerStrategy& strategy) : strategy_(strategy) {}

  // Runs it here and gives its result. Throws what a worker would report.
  Nest run(const Function& fn, const std::vector<Nest>& arguments, ClosureId closure);
  void release(const std::vector<std::uint64_t>& iterators) {
    for (const std::uint64_t id : iterators) iterators_.erase(id);
  }

 private:
  Nest call(const Function& fn, const std::vector<Nest>& arguments);
  std::shared_ptr<Iterator> iterator_of(const IteratorHandle& handle);

  ParameterServerStrategy& strategy_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Iterator>> iterators_;
};

}  // namespace cohort::coordinator
