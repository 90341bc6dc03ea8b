// SPDX-License-Identifier: Apache-2.0
// Closures that run in the coordinator's process (CoordinatorOptions::run_eagerly), as written.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cohort/coordinator/detail/closure_queue.h"
#include "cohort/coordinator/internal/iterator_handle.h"
#include "cohort/data/iterator.h"
#include "cohort/function/function.h"
#include "cohort/strategy/detail/parameter_server_home.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/variable/detail/eager_step.h"

namespace cohort::coordinator {

// What stays between them: the iterators of worker 0. Thread-compatible.
class EagerSteps {
 public:
  explicit EagerSteps(ParameterServerStrategy& strategy) : strategy_(strategy) {}

  // What a step of an epoch gave.
  struct Run {
    Nest result;
    std::uint64_t rows = 0;  // of its elements' first fields
  };

  // Runs it here, on elements of worker 0, and gives its result. Throws what a worker would report.
  Nest run(const Function& fn, const std::vector<Nest>& arguments, ClosureId closure) {
    return run_as(fn, arguments, closure, 0);
  }
  // The same with the next element of that worker of the first argument, an iterator; nothing at
  // its end.
  std::optional<Run> run_next(const Function& fn, const std::vector<Nest>& arguments,
                              ClosureId closure, std::uint32_t worker);
  void release(const std::vector<std::uint64_t>& iterators);
  // Of all steps, those that failed too, since the last call.
  VariableTraffic take_traffic() { return std::exchange(traffic_, {}); }

 private:
  class Elements;
  struct WorkerIterator {
    std::shared_ptr<Iterator> iterator;
    Elements* elements = nullptr;  // of it
  };

  Nest run_as(const Function& fn, const std::vector<Nest>& arguments, ClosureId closure,
              std::uint32_t worker);
  Nest call(const Function& fn, const std::vector<Nest>& arguments, std::uint32_t worker);
  const WorkerIterator& iterator_of(const IteratorHandle& handle, std::uint32_t worker);

  ParameterServerStrategy& strategy_;
  VariableTraffic traffic_;
  std::map<std::pair<std::uint64_t, std::uint32_t>, WorkerIterator> iterators_;  // by id and worker
};

}  // namespace cohort::coordinator
