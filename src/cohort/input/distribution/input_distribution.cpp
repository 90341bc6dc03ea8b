// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/distribution/input_distribution.h"

#include <algorithm>
#include <utility>

#include "cohort/collective/group.h"
#include "cohort/core/error.h"
#include "cohort/data/dataset.h"
#include "cohort/data/dataset_traits.h"
#include "cohort/data/iterator.h"
#include "cohort/input/iterators/read_ahead.h"

namespace cohort::input {
namespace {

// A guessed size does not count, since it would decide that data of a last step is left out.
bool is_static(const Dataset& dataset) {
  const ElementSpec& spec = dataset.element_spec();
  return std::all_of(spec.fields.begin(), spec.fields.end(),
                     [](const TensorSpec& field) { return field.is_static(); }) &&
         !data::guesses_sizes(dataset);
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// One spec that accepts the elements of all datasets.
ElementSpec common_spec(const std::vector<Dataset>& datasets) {
  ElementSpec common = datasets.front().element_spec();
  for (const Dataset& dataset : datasets) {
    const ElementSpec& spec = dataset.element_spec();
    Nest::check_same_structure(common.structure, spec.structure,
                               "[input.from_function] elements of the datasets of one function");
    for (std::size_t i = 0; i < common.fields.size(); ++i) {
      COHORT_CHECK(common.fields[i].dtype == spec.fields[i].dtype, ErrorCode::invalid_argument,
                   "[input.from_function] expected datasets of one spec from one function, got ",
                   common.to_string(), " and ", spec.to_string());
    }
    common = common.common_with(spec);
  }
  return common;
}

}  // namespace

// The default strategy uses no options.
InputDistribution::InputDistribution(std::shared_ptr<const InputHost> host,
                                     const InputOptions& given)
    : host_(std::move(host)), options_(host_->passes_through ? InputOptions() : given) {}

void InputDistribution::set_spec(ElementSpec component) {
  handles_partial_batches_ =
      host_->handles_partial_batches && cardinality() != kInfiniteCardinality &&
      (host_->num_workers() > 1 || !std::all_of(datasets_.begin(), datasets_.end(), is_static));
  if (handles_partial_batches_ && host_->num_workers() > 1) {
    for (TensorSpec& field : component.fields) {
      if (field.sizes && !field.sizes->empty()) field.sizes->front() = -1;
    }
  }
  spec_ = {.component = std::move(component),
           .num_components = host_->devices.size(),
           .is_wrapped = !host_->is_bare()};
}

// Without the exchange, the other workers would wait in their next call for a worker that has
// thrown, and would learn only that it is gone.
std::shared_ptr<InputDistribution> InputDistribution::of_function(
    std::shared_ptr<const InputHost> host, const DatasetFunction& fn, const InputOptions& given) {
  if (host->num_workers() == 1) return of_own_function(std::move(host), fn, given);
  std::shared_ptr<InputDistribution> distribution;
  const auto make = [&] {
    distribution = of_own_function(host, fn, given);
    return Bytes();
  };
  if (!host->is_first_group) {
    // The others may have called their functions before this worker came.
    try {
      make();
    } catch (...) {
      if (host->tell_failure) host->tell_failure();
      throw;
    }
    return distribution;
  }
  const collective::WorkerCalls::Running running(*host->worker_calls,
                                                 "distribute_datasets_from_function");
  const std::shared_ptr<collective::Group> group =
      host->exchange ? host->group : host->group->split();
  host->exchange_over(*group,
                      {.call = "input.distribute_datasets_from_function",
                       .text = "a call of distribute_datasets_from_function()"},
                      make);
  return distribution;
}

std::uint64_t InputDistribution::fingerprint() const {
  return data::graph_fingerprint(datasets_.front());
}

bool InputDistribution::is_reshuffled_by_seed() const {
  return std::any_of(datasets_.begin(), datasets_.end(),
                     [](const Dataset& each) { return data::is_reshuffled_by_seed(each); });
}

std::shared_ptr<InputDistribution> InputDistribution::of_own_function(
    std::shared_ptr<const InputHost> host, const DatasetFunction& fn, const InputOptions& given) {
  std::shared_ptr<InputDistribution> distribution(new InputDistribution(std::move(host), given));
  const InputOptions& options = distribution->options_;
  options.validate();
  COHORT_CHECK(fn != nullptr, ErrorCode::invalid_argument,
               "[input.from_function] expected a function that makes datasets, got none");
  const bool is_per_replica = options.replication_mode == ReplicationMode::per_replica;
  COHORT_CHECK(!is_per_replica || distribution->host_->allows_per_replica, ErrorCode::unimplemented,
               "[input.from_function] expected replication_mode per_worker, got per_replica: '",
               distribution->host_->strategy,
               "' has one pipeline a worker; MirroredStrategy takes it");
  distribution->fn_ = fn;
  distribution->num_worker_pipelines_ = is_per_replica ? distribution->host_->devices.size() : 1;
  for (std::size_t i = 0; i < distribution->num_worker_pipelines_; ++i) {
    distribution->datasets_.push_back(
        distribution->call(distribution->own_pipeline(ShardingMode::by_function, i)));
  }
  distribution->set_spec(common_spec(distribution->datasets_));
  return distribution;
}

Dataset InputDistribution::call(const PipelineId& id) const {
  Dataset dataset = fn_({.num_input_pipelines = id.num,
                         .input_pipeline_id = id.index,
                         .num_replicas_in_sync = id.num_replicas});
  COHORT_CHECK(dataset.node() != nullptr, ErrorCode::invalid_argument,
               "[input.from_function] expected the function to return a dataset, got none for "
               "pipeline ",
               id.index, " of ", id.num);
  return dataset;
}

PipelineId InputDistribution::own_pipeline(ShardingMode sharding_mode, std::size_t pipeline) const {
  PipelineId id{.num_replicas = host_->num_replicas_in_sync()};
  if (sharding_mode == ShardingMode::by_data) return id;
  const bool is_per_replica = options_.replication_mode == ReplicationMode::per_replica;
  id.num = is_per_replica ? host_->num_local_replicas() : host_->num_pipelines();
  id.index = is_per_replica ? static_cast<std::int64_t>(pipeline) : host_->pipeline();
  return id;
}

std::unique_ptr<data::ElementSource> InputDistribution::open(ShardingMode sharding_mode,
                                                             const PipelineId& id,
                                                             const IterationOptions& run) const {
  const std::size_t ahead = read_ahead(sharding_mode);
  const Dataset dataset = dataset_of(sharding_mode, id);
  std::stop_source stop;
  return std::make_unique<ReadAhead>(
      stop, ahead == 0 ? dataset.source(run) : data::source_ahead(dataset, run, stop.get_token()),
      ahead);
}

Dataset InputDistribution::dataset_of(ShardingMode sharding_mode, const PipelineId& id) const {
  if (sharding_mode == ShardingMode::by_data) return datasets_.front();
  if (sharding_mode != ShardingMode::by_function) return graph(id);
  for (std::size_t i = 0; i < num_worker_pipelines_; ++i) {
    if (own_pipeline(sharding_mode, i) == id) return datasets_[i];
  }
  return call(id);
}

std::vector<std::int64_t> InputDistribution::own_parts() const {
  std::vector<std::int64_t> parts;
  for (int r = 0; r < host_->num_local_replicas(); ++r) {
    parts.push_back(r * host_->num_workers() + host_->worker());
  }
  return parts;
}

std::unique_ptr<Rebatcher> InputDistribution::own_rebatcher(ShardingMode sharding_mode) const {
  const int replicas = host_->num_replicas_in_sync();
  if (sharding_mode == ShardingMode::by_data && replicas > 1)
    return split_batches(replicas, own_parts());
  return whole_batches();
}

bool InputDistribution::rebatches_others(ShardingMode sharding_mode) const {
  return sharding_mode != ShardingMode::by_data && sharding_mode != ShardingMode::by_function &&
         global_batch_size_ > 0;
}

// Devices that read host memory are served on the caller's thread. For others a thread makes what
// is copied next: a batch to split, or one mini-batch per replica.
std::size_t InputDistribution::read_ahead(ShardingMode sharding_mode) const {
  const bool is_wanted =
      sharding_mode != ShardingMode::by_function && options_.fetch_to_device.value_or(true) &&
      options_.buffer_size() > 0 &&
      std::any_of(host_->devices.begin(), host_->devices.end(),
                  [this](const Device& device) { return !host_->memory->is_host(device); });
  if (!is_wanted) return 0;
  return sharding_mode == ShardingMode::by_data ? 1 : host_->devices.size();
}

std::optional<std::int64_t> InputDistribution::num_steps() const {
  std::int64_t steps = 0;
  for (const Dataset& dataset : datasets_) {
    std::int64_t count = dataset.cardinality();
    if (count < 0) return std::nullopt;
    if (sharding_mode_ == ShardingMode::by_function && num_worker_pipelines_ == 1) {
      count = ceil_div(count, host_->num_local_replicas());
    } else if (sharding_mode_ == ShardingMode::by_graph ||
               sharding_mode_ == ShardingMode::everything) {
      const std::int64_t mini_batches = own_graph_->cardinality();
      if (mini_batches < 0) return std::nullopt;
      count = ceil_div(mini_batches, host_->num_local_replicas());
    }
    steps = std::max(steps, count);
  }
  return steps;
}

bool InputDistribution::cannot_fail() const {
  return std::all_of(datasets_.begin(), datasets_.end(),
                     [](const Dataset& dataset) { return data::cannot_fail(dataset); });
}

std::string InputDistribution::describe(ShardingMode sharding_mode) const {
  const std::string who = "worker " + std::to_string(host_->worker()) + " of " +
                          std::to_string(host_->num_workers()) + " (" +
                          std::to_string(host_->num_local_replicas()) + " replicas) reads ";
  const std::string why = reason_.empty() ? "" : "; " + reason_;
  switch (sharding_mode) {
    case ShardingMode::by_data: {
      if (host_->num_replicas_in_sync() == 1) return who + "the whole dataset" + why;
      std::string parts;
      for (const std::int64_t part : own_parts()) {
        parts += (parts.empty() ? "" : ", ") + std::to_string(part);
      }
      return who + "the whole dataset and takes parts " + parts + " of " +
             std::to_string(host_->num_replicas_in_sync()) + " of each batch" + why;
    }
    case ShardingMode::by_graph:
      return who + "its own share" + why;
    case ShardingMode::everything:
      return who + "the whole dataset, as every worker does" + why;
    case ShardingMode::by_function:
      break;
  }
  return who + "what its dataset function made";
}

}  // namespace cohort::input
