// SPDX-License-Identifier: Apache-2.0
// The ops there are: how each is made from its wire form, and what a rewrite needs to know of it.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "cohort/data/internal/attribute_reader.h"
#include "cohort/data/internal/node.h"

namespace cohort::data {

// What the FILE walk of auto-shard does at an op, seen from the sink (spec 3.5.2).
enum class ShardRule : std::uint8_t {
  source,            // no files to deal out: its elements are dealt out by index
  pass_through,      // looks further at its first input
  all_inputs,        // looks at every input; one without files fails the whole
  dataset_function,  // shards its input, where the function of an element reads files
  reader,            // shards its input, the names of files; without one: as a source
  remove,            // takes it out and looks further at its input
  refuse,            // its order or count would change, or the original knows no way: only DATA
};
// What the global batch size is, seen from the sink (spec 3.3).
enum class BatchRule : std::uint8_t {
  unknown,       // -1
  pass_through,  // that of its input
  own,           // its attribute batch_size
  common,        // that of all inputs, where they agree
};

inline constexpr std::size_t kAnyInputCount = static_cast<std::size_t>(-1);

struct Op {
  std::string_view name;
  ShardRule shard_rule;
  BatchRule batch_rule;
  // Throws data_loss or invalid_argument for attributes no such op has. May open no file: paths of
  // a peer are looked at when the graph runs, against RunOptions::data_dirs.
  NodePtr (*make)(std::vector<NodePtr> inputs, AttributeReader& attributes);
  std::size_t input_count;  // or kAnyInputCount: make() checks it
};

std::span<const Op> op_table();
// nullptr if there is none.
const Op* find_op(std::string_view name);

}  // namespace cohort::data
