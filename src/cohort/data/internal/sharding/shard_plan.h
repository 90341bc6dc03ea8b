// SPDX-License-Identifier: Apache-2.0
// What auto_shard() decided and made of a graph, before anything is logged.
#pragma once

#include "cohort/data/auto_shard.h"
#include "cohort/data/internal/node.h"

namespace cohort::data {

struct ShardPlan {
  ShardDecision decision;
  NodePtr graph;
};
ShardPlan plan_shards(const Dataset& dataset, const AutoShardOptions& options);

}  // namespace cohort::data
