// SPDX-License-Identifier: Apache-2.0
// The shard op as rewrites insert it.
#pragma once

#include "cohort/data/internal/node.h"

namespace cohort::data {

struct Shard {
  std::int64_t count = 1;  // or kShardHint
  std::int64_t index = 0;
  // Fewer elements than shards are invalid_argument at the first element of those shards that have
  // one (spec 3.5.4); a shard without elements ends silently.
  bool require_non_empty = false;
};

// invalid_argument for numbers that are no shard.
NodePtr shard_node(NodePtr input, Shard shard);
// Whether a node is shard(kShardHint, …).
bool is_shard_hint(const Node& node);

}  // namespace cohort::data
