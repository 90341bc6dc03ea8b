// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/rebatch.h"

#include <algorithm>

#include "cohort/core/error.h"
#include "cohort/data/auto_shard.h"
#include "cohort/data/ops/op_registry.h"
#include "cohort/data/sharding/graph_edit.h"

namespace cohort {
namespace data {
namespace {

constexpr std::int64_t kUnknownBatch = -1;

// The batch size in the spec; nullopt if a first size is not static.
std::optional<std::int64_t> batch_of_spec(const ElementSpec& spec) {
  std::optional<std::int64_t> common;
  bool is_known = true;
  for (const TensorSpec& field : spec.fields) {
    COHORT_CHECK(!field.sizes || !field.sizes->empty(), ErrorCode::invalid_argument,
                 "[data.rebatch] expected batches, got elements of ", spec.to_string(),
                 " with scalars; call batch() on the dataset before it is distributed");
    if (!field.sizes || field.sizes->front() < 0) {
      is_known = false;
    } else if (!common) {
      common = field.sizes->front();
    } else if (*common != field.sizes->front()) {
      common = kUnknownBatch;
    }
  }
  return is_known ? common : std::nullopt;
}

std::int64_t batch_of_ops(const Node& node);

std::int64_t common_batch(const Node& node) {
  std::optional<std::int64_t> common;
  for (const NodePtr& input : node.inputs()) {
    const std::int64_t batch = batch_of_ops(*input);
    if (common.value_or(batch) != batch) return kUnknownBatch;
    common = batch;
  }
  return common.value_or(kUnknownBatch);
}

// The batch size of the batch op nearest to the sink.
std::int64_t batch_of_ops(const Node& node) {
  switch (known_op(node.op()).batch_rule) {
    case BatchRule::own:
      return find_integer(node, "batch_size").value_or(kUnknownBatch);
    case BatchRule::pass_through:
      return batch_of_ops(node.input());
    case BatchRule::common:
      return common_batch(node);
    case BatchRule::unknown:
      break;
  }
  return kUnknownBatch;
}

void check(const RebatchPlan& plan) {
  COHORT_CHECK(plan.workers >= 1 && plan.replicas_per_worker >= 1, ErrorCode::invalid_argument,
               "[data.rebatch] expected workers and replicas_per_worker >= 1, got ", plan.workers,
               " and ", plan.replicas_per_worker);
  COHORT_CHECK(plan.worker >= 0 && plan.worker < plan.workers, ErrorCode::invalid_argument,
               "[data.rebatch] expected 0 <= worker < workers = ", plan.workers, ", got ",
               plan.worker);
}

// If mini-batches are sharded by number, every worker must use the same list of sizes.
std::vector<std::int64_t> sizes_for(const Dataset& dataset, const RebatchPlan& plan,
                                    RebatchMode mode, std::int64_t global_batch) {
  const bool is_dealt_out =
      mode == RebatchMode::sized && plan.workers > 1 &&
      shard_decision(dataset, {.num_workers = plan.workers,
                               .index = plan.worker,
                               .num_replicas = plan.workers * plan.replicas_per_worker,
                               .policy = plan.policy,
                               .rebatch = mode,
                               .too_few_files = plan.too_few_files})
              .taken == AutoShardPolicy::data;
  if (is_dealt_out)
    return rebatch_sizes(global_batch, 1, plan.workers * plan.replicas_per_worker, 0);
  return rebatch_sizes(global_batch, plan.workers, plan.replicas_per_worker, plan.worker);
}

Dataset sized_batches(const Dataset& dataset, const std::vector<std::int64_t>& sizes) {
  return Dataset(make_node(
      "rebatch", {dataset.node()},
      {{"sizes", Nest::list(Nest::Items(sizes.begin(), sizes.end()))}, {"drop_remainder", false}}));
}

}  // namespace
}  // namespace data

std::vector<std::int64_t> rebatch_sizes(std::int64_t global_batch, std::int64_t workers,
                                        std::int64_t replicas_per_worker, std::int64_t worker) {
  data::check({.workers = workers, .worker = worker, .replicas_per_worker = replicas_per_worker});
  COHORT_CHECK(global_batch >= 0, ErrorCode::invalid_argument,
               "[data.rebatch] expected a global batch >= 0, got ", global_batch);
  const std::int64_t replicas = workers * replicas_per_worker;
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(replicas), global_batch / replicas);
  std::for_each_n(sizes.begin(), global_batch % replicas, [](std::int64_t& size) { ++size; });
  std::rotate(sizes.begin(), sizes.begin() + worker * replicas_per_worker, sizes.end());
  return sizes;
}

std::int64_t infer_batch_size(const Dataset& dataset) {
  const auto known = data::batch_of_spec(dataset.element_spec());
  return known ? *known : data::batch_of_ops(*dataset.node());
}

Dataset rebatch_for(const Dataset& dataset, const RebatchPlan& plan) {
  data::check(plan);
  const std::int64_t replicas = plan.workers * plan.replicas_per_worker;
  if (replicas == 1) return dataset;
  const std::int64_t global_batch = infer_batch_size(dataset);
  const RebatchMode mode = plan.mode.value_or(dataset.options().rebatch);
  COHORT_CHECK(mode != RebatchMode::sized || global_batch >= 0, ErrorCode::invalid_argument,
               "[data.rebatch] expected a dataset whose global batch is known (rebatch = sized), "
               "got ",
               data::chain_of(*dataset.node()),
               "; put batch() after map(), or use rebatch = automatic");
  const bool is_split = mode == RebatchMode::split || global_batch <= 0;
  const Dataset cut =
      is_split ? Dataset(data::make_node("rebatch_split", {dataset.node()}, {{"parts", replicas}}))
               : data::sized_batches(dataset, data::sizes_for(dataset, plan, mode, global_batch));
  return plan.prefetch ? cut.prefetch(plan.replicas_per_worker) : cut;
}

}  // namespace cohort
