// SPDX-License-Identifier: Apache-2.0
// FILE sharding: inserts shards at the inputs of file names that a graph reads (spec 3.5.2).
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

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

std::variant<FileShards, FileRefusal> shard_files(const NodePtr& sink, std::int64_t num_shards,
                                                  std::int64_t index);

// The number of names, at most `limit`: from the cardinality, or, if that is unknown, by drawing
// the names.
std::int64_t count_names(const Node& names, std::int64_t limit);

}  // namespace cohort::data
