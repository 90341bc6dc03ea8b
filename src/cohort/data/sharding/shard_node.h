// SPDX-License-Identifier: Apache-2.0
// The shard op, as inserted by rewrites.
#pragma once

#include "cohort/data/graph/node.h"

namespace cohort::data {

struct Shard {
  std::int64_t count = 1;  // or kShardHint
  std::int64_t index = 0;
  // If there are fewer elements than shards, a shard that has an element throws invalid_argument at
  // its first one (spec 3.5.4), and a shard without elements is empty.
  bool require_non_empty = false;
};

// invalid_argument if count and index are invalid.
NodePtr shard_node(NodePtr input, Shard shard);
// Whether a node is shard(kShardHint, …).
bool is_shard_hint(const Node& node);

}  // namespace cohort::data
