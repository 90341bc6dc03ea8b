// SPDX-License-Identifier: Apache-2.0
// Plans for distribute_dataset(): how global batches are split, and which policy divides the data.
#include <utility>

#include "cohort/core/error.h"
#include "cohort/data/auto_shard.h"
#include "cohort/data/dataset_traits.h"
#include "cohort/data/rebatch.h"
#include "cohort/input/distribution/input_distribution.h"
#include "cohort/input/input_host.h"

namespace cohort::input {
namespace {

// Workers that never meet have batches of their own, which only their replicas divide.
RebatchPlan rebatch_plan(const PipelineId& id, const Dataset& dataset, bool is_lone) {
  return {.workers = is_lone ? 1 : id.num,
          .worker = is_lone ? 0 : id.index,
          .replicas_per_worker = is_lone ? id.num_replicas : id.num_replicas / id.num,
          .too_few_files = dataset.options().too_few_files,
          .prefetch = false};
}

AutoShardOptions shard_options(const PipelineId& id, const Dataset& dataset) {
  return {.num_workers = id.num,
          .index = id.index,
          .num_replicas = id.num_replicas,
          .too_few_files = dataset.options().too_few_files};
}

}  // namespace

std::shared_ptr<InputDistribution> InputDistribution::of_dataset(
    std::shared_ptr<const InputHost> host, const Dataset& dataset, const InputOptions& given) {
  std::shared_ptr<InputDistribution> distribution(new InputDistribution(std::move(host), given));
  const InputOptions& options = distribution->options_;
  COHORT_CHECK(options.replication_mode == ReplicationMode::per_worker, ErrorCode::unimplemented,
               "[input.distribute_dataset] expected replication_mode per_worker, got per_replica: "
               "that is for distribute_datasets_from_function()");
  // Contradictory options do not matter here (spec 3.7).
  InputOptions{.per_replica_buffer_size = options.per_replica_buffer_size}.validate();
  COHORT_CHECK(dataset.node() != nullptr, ErrorCode::invalid_argument,
               "[input.distribute_dataset] expected a dataset, got none");
  distribution->datasets_.push_back(dataset);
  distribution->choose_sharding_mode();
  distribution->set_spec(distribution->cut_spec(dataset.element_spec()));
  return distribution;
}

// If every worker runs the whole dataset anyway, its batches are split here: a position is then one
// in the user's dataset, and any number of workers can continue from it.
void InputDistribution::choose_sharding_mode() {
  sharding_mode_ = ShardingMode::by_data;
  if (host_->passes_through) return;
  const Dataset& dataset = datasets_.front();
  const PipelineId id = own_pipeline(ShardingMode::by_graph, 0);
  if (id.num_replicas > 1) global_batch_size_ = infer_batch_size(dataset);
  const Dataset cut = rebatch_for(dataset, rebatch_plan(id, dataset, host_->lone_workers > 0));
  const ShardDecision decision = shard_decision(cut, shard_options(id, dataset));
  reason_ = decision.to_string();
  if (host_->num_workers() > 1 && decision.taken == AutoShardPolicy::data) {
    data::check_order_is_fixed(dataset, "input.distribute_dataset",
                               "distribute_datasets_from_function()");
  }
  const bool is_whole = decision.taken == AutoShardPolicy::data && !decision.is_by_index &&
                        dataset.options().rebatch != RebatchMode::sized;
  // Workers that never meet do not agree on an order, by which each could take its batches.
  if (is_whole && host_->lone_workers == 0) return;
  if (is_whole) policy_ = AutoShardPolicy::data;
  const bool is_off = decision.taken == AutoShardPolicy::off;
  sharding_mode_ = is_off ? ShardingMode::everything : ShardingMode::by_graph;
  is_by_index_ = decision.is_by_index;
  own_graph_ = graph(id);
}

Dataset InputDistribution::graph(const PipelineId& id) const {
  if (own_graph_ && id == own_pipeline(sharding_mode_, 0)) return *own_graph_;
  const Dataset& dataset = datasets_.front();
  AutoShardOptions options = shard_options(id, dataset);
  options.policy = policy_;
  return auto_shard(rebatch_for(dataset, rebatch_plan(id, dataset, host_->lone_workers > 0)),
                    options);
}

std::unique_ptr<Rebatcher> InputDistribution::rebatcher_of_others(
    ShardingMode sharding_mode) const {
  if (!rebatches_others(sharding_mode)) return own_rebatcher(sharding_mode);
  return sized_batches(rebatch_sizes(global_batch_size_, host_->num_workers(),
                                     host_->num_local_replicas(), host_->worker()),
                       spec_.component);
}

ElementSpec InputDistribution::cut_spec(ElementSpec spec) const {
  const std::int64_t replicas = host_->num_replicas_in_sync();
  if (replicas == 1) return spec;
  const bool is_split =
      global_batch_size_ <= 0 || datasets_.front().options().rebatch == RebatchMode::split;
  for (TensorSpec& field : spec.fields) {
    if (!field.sizes || field.sizes->empty()) continue;
    std::int64_t& rows = field.sizes->front();
    if (rows < 0) continue;
    const bool is_even = is_split ? rows % replicas == 0
                                  : global_batch_size_ % replicas == 0 &&
                                        rows % (global_batch_size_ / replicas) == 0;
    const std::int64_t each = is_split ? rows / replicas : global_batch_size_ / replicas;
    rows = is_even ? each : -1;
  }
  return spec;
}

}  // namespace cohort::input
