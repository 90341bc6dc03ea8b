// SPDX-License-Identifier: Apache-2.0
// The ops there are: how each is made from its wire form, and what a rewrite needs to know of it.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "cohort/data/internal/attribute_reader.h"
#include "cohort/data/internal/node.h"

namespace cohort::data {

// Where the graph may be cut into shards of files (the FILE walk of auto-shard), seen from the
// sink.
enum class ShardRule : std::uint8_t {
  source,        // no files to deal out: its elements are dealt out by index
  pass_through,  // look further at its one input
};

inline constexpr std::size_t kAnyInputCount = static_cast<std::size_t>(-1);

struct Op {
  std::string_view name;
  ShardRule shard_rule;
  // Throws data_loss or invalid_argument for attributes no such op has. May open no file: paths of
  // a peer are looked at when the graph runs, against RunOptions::data_dirs.
  NodePtr (*make)(std::vector<NodePtr> inputs, AttributeReader& attributes);
  std::size_t input_count;  // or kAnyInputCount: make() checks it
};

std::span<const Op> op_table();
// nullptr if there is none.
const Op* find_op(std::string_view name);

}  // namespace cohort::data
