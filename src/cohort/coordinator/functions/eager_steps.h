// SPDX-License-Identifier: Apache-2.0
// Runs closures in the coordinator's process, without a trace (CoordinatorOptions::run_eagerly).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cohort/coordinator/datasets/iterator_handle.h"
#include "cohort/coordinator/queue/closure_queue.h"
#include "cohort/data/iterator.h"
#include "cohort/function/function.h"
#include "cohort/parameter_server_strategy/parameter_server_home.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/variable/eager_step.h"

namespace cohort::coordinator {

// Keeps the workers' iterators between closures. Thread-compatible.
class EagerSteps {
 public:
  explicit EagerSteps(ParameterServerStrategy& strategy) : strategy_(strategy) {}

  // The result of a step of an epoch.
  struct Run {
    Nest result;
    std::uint64_t rows = 0;  // the rows of its elements, counted in their first fields
  };

  // Runs a closure on elements of worker 0. Throws the error that a worker would report.
  Nest run(const Function& fn, const std::vector<Nest>& arguments, ClosureId closure) {
    return run_as(fn, arguments, closure, 0);
  }
  // Runs a closure on the next element of `worker`; the first argument is the iterator. Returns
  // nullopt at the end of the data.
  std::optional<Run> run_next(const Function& fn, const std::vector<Nest>& arguments,
                              ClosureId closure, std::uint32_t worker);
  void release(const std::vector<std::uint64_t>& iterators);
  // Traffic since the last call, including that of failed closures.
  VariableTraffic take_traffic() { return std::exchange(traffic_, {}); }

 private:
  class Elements;
  struct EagerIterator {
    std::shared_ptr<Iterator> iterator;
    Elements* elements = nullptr;  // owned by `iterator`
  };

  Nest run_as(const Function& fn, const std::vector<Nest>& arguments, ClosureId closure,
              std::uint32_t worker);
  Nest call(const Function& fn, const std::vector<Nest>& arguments, std::uint32_t worker);
  const EagerIterator& iterator_of(const IteratorHandle& handle, std::uint32_t worker);

  ParameterServerStrategy& strategy_;
  VariableTraffic traffic_;
  std::map<std::pair<std::uint64_t, std::uint32_t>, EagerIterator> iterators_;  // by id and worker
};

}  // namespace cohort::coordinator
