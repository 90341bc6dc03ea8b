// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/distributed_dataset.h"

#include <utility>

#include "cohort/core/error.h"
#include "cohort/input/detail/input_host.h"
#include "cohort/input/internal/distributed_iterator_state.h"
#include "cohort/input/internal/input_distribution.h"

namespace cohort {

DistributedDataset DistributedDataset::from_dataset(std::shared_ptr<const input::InputHost> host,
                                                    const Dataset& dataset,
                                                    const InputOptions& options) {
  return DistributedDataset(
      input::InputDistribution::of_dataset(std::move(host), dataset, options));
}

DistributedDataset DistributedDataset::from_function(std::shared_ptr<const input::InputHost> host,
                                                     const DatasetFunction& fn,
                                                     const InputOptions& options) {
  return DistributedDataset(input::InputDistribution::of_function(std::move(host), fn, options));
}

std::int64_t DistributedDataset::cardinality() const { return distribution_->cardinality(); }
const DistributedSpec& DistributedDataset::element_spec() const { return distribution_->spec(); }
bool DistributedDataset::handles_partial_batches() const {
  return distribution_->handles_partial_batches();
}

DistributedIterator DistributedDataset::iterator() const {
  return DistributedIterator(std::make_unique<input::DistributedIteratorState>(distribution_));
}

DistributedDataset::Pass DistributedDataset::begin() const { return Pass(iterator()); }

DistributedDataset::Pass::Pass(DistributedIterator iterator)
    : iterator_(std::make_shared<DistributedIterator>(std::move(iterator))) {
  ++*this;
}

DistributedDataset::Pass& DistributedDataset::Pass::operator++() {
  element_ = iterator_->try_next();
  return *this;
}

PerReplica<Nest> distributed_values(const input::InputHost& host, const ValueFunction& value_fn) {
  host.check_context("distribute_values_from_function");
  COHORT_CHECK(value_fn != nullptr, ErrorCode::invalid_argument,
               "[input.values] expected a function that makes values, got none");
  std::vector<Nest> values;
  for (int i = 0; i < host.num_local_replicas(); ++i) {
    values.push_back(
        value_fn({.replica_id_in_sync_group = host.worker() * host.num_local_replicas() + i,
                  .num_replicas_in_sync = host.num_replicas_in_sync()}));
    Nest::check_same_structure(values.front(), values.back(),
                               "[input.values] the value of replica " + std::to_string(i));
  }
  if (!host.wraps_values) return PerReplica<Nest>::bare(std::move(values.front()));
  return PerReplica<Nest>(std::move(values));
}

}  // namespace cohort
