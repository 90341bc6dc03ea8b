// SPDX-License-Identifier: Apache-2.0
// What rewrites build new graphs from. Nodes are immutable: a rewrite makes new ones above what it
// changes, and shares the rest.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/data/internal/node.h"

namespace cohort::data {

// The op of that name, made as from the wire.
NodePtr make_node(std::string_view op, std::vector<NodePtr> inputs, const Attributes& attributes);
// shard(num, index) that fails where there are fewer elements than shards (spec 3.5.4); the input
// itself for one shard.
NodePtr sharded(NodePtr input, std::int64_t num_shards, std::int64_t index);

// An integer attribute; nullopt where the node has none.
std::optional<std::int64_t> find_integer(const Node& node, const char* attribute);

// The node over other inputs; itself if they are the same.
NodePtr over(const NodePtr& node, std::vector<NodePtr> inputs);
// The graph with each node replaced by edit(that node over its edited inputs). A node used twice is
// edited once.
NodePtr edited(const NodePtr& sink, const std::function<NodePtr(NodePtr)>& edit);

// prefetch and options nodes at the end of a graph, outermost first, and what they stand on.
struct Tail {
  std::vector<NodePtr> nodes;
  NodePtr body;
  // The same nodes over another body.
  NodePtr over(NodePtr other) const;
};
Tail tail_of(const NodePtr& sink);

// "'flat_map' <- 'list_files'": op names from the sink to the first source.
std::string chain_of(const Node& sink);

}  // namespace cohort::data
