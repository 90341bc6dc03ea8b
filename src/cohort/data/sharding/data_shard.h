// SPDX-License-Identifier: Apache-2.0
// DATA sharding: distributes mini-batches, or elements of unbatched datasets, by their number
// (spec 3.5.3).
#pragma once

#include <cstdint>

#include "cohort/data/auto_shard.h"
#include "cohort/data/graph/node.h"

namespace cohort::data {

struct DataShards {
  NodePtr graph;
  // A rebatch at the end became a rebatch_split.
  bool is_split = false;
  // Other workers' elements are skipped without being computed.
  bool is_by_index = false;
};

// `rebatch` is the mode that holds, that of the options or of the dataset.
DataShards shard_data(const NodePtr& sink, const AutoShardOptions& options, RebatchMode rebatch);

// Whether a graph is a row store followed only by ops that choose and order rows.
bool is_rows(const Node& node);

}  // namespace cohort::data
