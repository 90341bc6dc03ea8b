// SPDX-License-Identifier: Apache-2.0
// A dataset distributed to the replicas of a strategy (tf.distribute.DistributedDataset). Made by
// Strategy::distribute_dataset() and distribute_datasets_from_function().
//
//   for (const auto& batch : strategy.distribute_dataset(dataset)) {
//     auto losses = strategy.run(step, batch);
//   }
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "cohort/core/export.h"
#include "cohort/data/dataset.h"
#include "cohort/data/input_context.h"
#include "cohort/input/distributed_iterator.h"
#include "cohort/input/input_host.h"
#include "cohort/input/input_options.h"
#include "cohort/input/value_context.h"

namespace cohort {

namespace input {
class InputDistribution;  // input/internal/input_distribution.h
}

using DatasetFunctionOfContext = std::function<Dataset(const InputContext& context)>;

// A shared handle to an immutable description. Thread-safe. If there are several workers, all must
// call iterator() equally often and in the same order.
class COHORT_API DistributedDataset {
 public:
  // Splits the dataset's global batches into mini-batches and distributes them to workers and
  // replicas as its options say. unimplemented for ReplicationMode::per_replica; invalid_argument
  // for a dataset that is not batched.
  static DistributedDataset from_dataset(std::shared_ptr<const InputHost> host,
                                         const Dataset& dataset, const InputOptions& options);
  // Calls fn now, once for each pipeline of this worker, and returns its elements unchanged.
  static DistributedDataset from_function(std::shared_ptr<const InputHost> host,
                                          const DatasetFunctionOfContext& fn,
                                          const InputOptions& options);

  // The cardinality of the user's dataset.
  std::int64_t cardinality() const;
  const DistributedSpec& element_spec() const;
  // Whether a step in which only some replicas have data is returned, with empty batches for the
  // others.
  bool handles_partial_batches() const;
  // A new pass from the first element, with new shuffles.
  DistributedIterator iterator() const;
  // fn(state, element) over all steps of a pass, from `state` on.
  template <class T, class F>
  T reduce(T state, F fn) const {
    DistributedIterator all = iterator();
    while (std::optional<DistributedElement> element = all.try_next())
      state = fn(std::move(state), *element);
    return state;
  }

  // One eager pass.
  class Pass;
  struct End {};
  Pass begin() const;
  End end() const { return {}; }

  explicit DistributedDataset(std::shared_ptr<input::InputDistribution> distribution)
      : distribution_(std::move(distribution)) {}

 private:
  std::shared_ptr<input::InputDistribution> distribution_;
};

// An input iterator over one pass.
class COHORT_API DistributedDataset::Pass {
 public:
  explicit Pass(DistributedIterator iterator);
  const DistributedElement& operator*() const { return *element_; }
  Pass& operator++();
  bool operator==(End) const { return !element_.has_value(); }

 private:
  std::shared_ptr<DistributedIterator> iterator_;
  std::optional<DistributedElement> element_;
};

// Calls value_fn once for each local replica, in order (distribute_values_from_function). All
// values must have one structure, else invalid_argument.
COHORT_API PerReplica<Nest> distributed_values(const InputHost& host,
                                               const ValueFunction& value_fn);

}  // namespace cohort
