// SPDX-License-Identifier: Apache-2.0
// Building blocks of graph rewrites. Nodes are immutable: a rewrite copies the nodes that it
// changes and all nodes after them, and shares the rest.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/data/graph/node.h"

namespace cohort::data {

// Makes an op as if deserialized.
NodePtr make_node(std::string_view op, std::vector<NodePtr> inputs, const Attributes& attributes);
// A shard(num_shards, index) that fails if there are fewer elements than shards (spec 3.5.4); the
// input itself for one shard.
NodePtr sharded(NodePtr input, std::int64_t num_shards, std::int64_t index);

// An integer attribute; nullopt if the node has none of that name.
std::optional<std::int64_t> find_integer(const Node& node, const char* attribute);

// The node with other inputs; the node itself if they are the same.
NodePtr over(const NodePtr& node, std::vector<NodePtr> inputs);
// The graph with each node replaced by the result of edit(), which gets the node with its edited
// inputs. A node used twice is edited once.
NodePtr edited(const NodePtr& sink, const std::function<NodePtr(NodePtr)>& edit);

// The prefetch and options nodes at the end of a graph, the last first, and the graph before them.
struct Tail {
  std::vector<NodePtr> nodes;
  NodePtr body;
  // The same nodes after another body.
  NodePtr over(NodePtr other) const;
};
Tail tail_of(const NodePtr& sink);

// "'flat_map' <- 'list_files'": op names from the sink to the first source.
std::string chain_of(const Node& sink);

}  // namespace cohort::data
