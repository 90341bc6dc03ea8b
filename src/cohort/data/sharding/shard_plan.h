// SPDX-License-Identifier: Apache-2.0
// The decision and the new graph of auto_shard(), without logging, and the two ways of sharding a
// graph.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "cohort/data/auto_shard.h"
#include "cohort/data/graph/node.h"

namespace cohort::data {

// An input of file names that was sharded.
struct NameStream {
  std::string reader;  // the op that reads the files
  NodePtr names;       // before sharding, without shuffles
};
struct FileShards {
  NodePtr graph;  // a new graph; the original is unchanged
  std::vector<NameStream> streams;
  std::vector<std::string> notes;  // other changes to the graph
};
// The op that makes FILE impossible, and why.
struct FileRefusal {
  std::string op;
  std::string reason;
};

// FILE sharding: inserts shards at the inputs of file names that a graph reads (spec 3.5.2).
std::variant<FileShards, FileRefusal> shard_files(const NodePtr& sink, std::int64_t num_shards,
                                                  std::int64_t index);

// The number of names, at most `limit`: from the cardinality, or, if that is unknown, by drawing
// the names.
std::int64_t count_names(const Node& names, std::int64_t limit);

struct DataShards {
  NodePtr graph;
  // A rebatch at the end became a rebatch_split.
  bool is_split = false;
  // Other workers' elements are skipped without being computed.
  bool is_by_index = false;
};

// DATA sharding: distributes mini-batches, or elements of unbatched datasets, by their number
// (spec 3.5.3). `rebatch` is the mode that holds, that of the options or of the dataset.
DataShards shard_data(const NodePtr& sink, const AutoShardOptions& options, RebatchMode rebatch);

// Whether a graph is a row store followed only by ops that choose and order rows.
bool is_rows(const Node& node);

struct ShardPlan {
  ShardDecision decision;
  NodePtr graph;
};
ShardPlan plan_shards(const Dataset& dataset, const AutoShardOptions& options);

}  // namespace cohort::data
