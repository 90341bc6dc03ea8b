// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/distributed_dataset.h"

#include <ATen/core/TensorBody.h>

#include "cohort/core/call_site.h"
#include "cohort/core/error.h"
#include "cohort/core/string_tensor.h"
#include "cohort/data/batch_parts.h"
#include "cohort/input/distribution/current_distribution.h"
#include "cohort/input/distribution/input_distribution.h"
#include "cohort/input/input_host.h"
#include "cohort/input/iterators/distributed_iterator_state.h"

namespace cohort {

std::string ValueContext::to_string() const {
  // Two blanks, as in tf.
  return "tf.distribute.ValueContext(replica id " + std::to_string(replica_id_in_sync_group) +
         ",  total replicas in sync: " + std::to_string(num_replicas_in_sync) + ")";
}

void InputOptions::validate() const {
  COHORT_CHECK(buffer_size() >= 0, ErrorCode::invalid_argument,
               "[input.options] expected per_replica_buffer_size >= 0 or kAutotune, got ",
               per_replica_buffer_size, "; use 0 to fetch each mini-batch when it is asked for");
  if (!place_dataset_on_device) return;
  COHORT_CHECK(replication_mode == ReplicationMode::per_replica, ErrorCode::invalid_argument,
               "[input.options] expected replication_mode per_replica with "
               "place_dataset_on_device, got per_worker");
  COHORT_CHECK(!fetch_to_device.value_or(true), ErrorCode::invalid_argument,
               "[input.options] expected fetch_to_device = false with place_dataset_on_device, got "
               "true: what a device makes itself is not fetched to it");
}

std::int64_t InputOptions::buffer_size() const {
  return per_replica_buffer_size == kAutotune ? InputOptions().per_replica_buffer_size
                                              : per_replica_buffer_size;
}

DistributedDataset DistributedDataset::from_dataset(std::shared_ptr<const input::InputHost> host,
                                                    const Dataset& dataset,
                                                    const InputOptions& options) {
  const auto make = [dataset, options](std::shared_ptr<const input::InputHost> of) {
    return input::InputDistribution::of_dataset(std::move(of), dataset, options);
  };
  std::shared_ptr<input::InputDistribution> first = make(std::move(host));
  return DistributedDataset(std::make_shared<input::CurrentDistribution>(std::move(first), make));
}

DistributedDataset DistributedDataset::from_function(std::shared_ptr<const input::InputHost> host,
                                                     const DatasetFunction& fn,
                                                     const InputOptions& options) {
  const auto make = [fn, options](std::shared_ptr<const input::InputHost> of) {
    return input::InputDistribution::of_own_function(std::move(of), fn, options);
  };
  return DistributedDataset(std::make_shared<input::CurrentDistribution>(
      input::InputDistribution::of_function(std::move(host), fn, options), make));
}

std::int64_t DistributedDataset::cardinality() const { return distribution_->get()->cardinality(); }
DistributedSpec DistributedDataset::element_spec() const { return distribution_->get()->spec(); }
bool DistributedDataset::handles_partial_batches() const {
  return distribution_->get()->handles_partial_batches();
}
std::uint64_t DistributedDataset::next_pass() const { return distribution_->next().pass; }
void DistributedDataset::set_next_pass(std::uint64_t pass) const {
  distribution_->set_next_pass(pass);
}

DistributedIterator DistributedDataset::iterator(const char* file, int line) const {
  const internal::CallSite site("starts an iterator", {file, line});
  return DistributedIterator(std::make_unique<input::DistributedIteratorState>(distribution_));
}

DistributedDataset::Pass DistributedDataset::begin(const char* file, int line) const {
  return Pass(iterator(file, line));
}

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
  // The function may cut one tensor in parts for the replicas.
  for (Nest& value : values) {
    value = value.map_leaves([](const Nest& leaf) {
      const bool is_dense = leaf.is_tensor() && leaf.tensor().defined() &&
                            !StringTensor::is(leaf.tensor()) &&
                            leaf.tensor().layout() == at::kStrided;
      return is_dense ? Nest(data::with_own_version(leaf.tensor())) : leaf;
    });
  }
  return PerReplica<Nest>(std::move(values));
}

}  // namespace cohort
