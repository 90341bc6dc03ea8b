// SPDX-License-Identifier: Apache-2.0
// The decision and the new graph of auto_shard(), without logging.
#pragma once

#include "cohort/data/auto_shard.h"
#include "cohort/data/graph/node.h"

namespace cohort::data {

struct ShardPlan {
  ShardDecision decision;
  NodePtr graph;
};
ShardPlan plan_shards(const Dataset& dataset, const AutoShardOptions& options);

}  // namespace cohort::data
