// SPDX-License-Identifier: Apache-2.0
// Where FILE sharding puts its shards: on the streams of file names that a graph reads
// (spec 3.5.2).
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "cohort/data/internal/node.h"

namespace cohort::data {

// A stream of names that was dealt out.
struct NameStream {
  std::string reader;  // the op above it
  NodePtr names;       // without its shuffles, undealt
};
struct FileShards {
  NodePtr graph;  // a new one; the old is as it was
  std::vector<NameStream> streams;
  std::vector<std::string> notes;  // what was changed besides
};
// The op that FILE cannot pass, and why.
struct FileRefusal {
  std::string op;
  std::string reason;
};

std::variant<FileShards, FileRefusal> shard_files(const NodePtr& sink, std::int64_t num_shards,
                                                  std::int64_t index);

// The number of names, counted no further than `limit`: from the cardinality, or by drawing names
// where only that tells.
std::int64_t count_names(const Node& names, std::int64_t limit);

}  // namespace cohort::data
