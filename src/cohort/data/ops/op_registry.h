// SPDX-License-Identifier: Apache-2.0
// The table of all ops: how to make each from its serialized form, and its properties for rewrites.
#pragma once

#include <span>
#include <string_view>

#include "cohort/data/graph/attribute_reader.h"
#include "cohort/data/graph/node.h"

namespace cohort::data {

// How FILE sharding treats an op, walking the graph from the sink (spec 3.5.2).
enum class ShardRule : std::uint8_t {
  source,            // stops: a source without files, which only DATA can shard
  pass_through,      // continues with its first input
  all_inputs,        // continues with every input; each must be shardable by file
  dataset_function,  // shards its input if its function reads files; else as pass_through
  reader,            // shards its input, the file names; without an input, as source
  remove,            // removes the op and continues with its input
  refuse,            // stops: FILE would change its order or count, or tf does not support it
};
// How to find the global batch size at an op, walking from the sink (spec 3.3).
enum class BatchRule : std::uint8_t {
  unknown,       // -1
  pass_through,  // its input's
  own,           // its attribute batch_size
  common,        // its inputs', if they are equal
};

inline constexpr std::size_t kAnyInputCount = static_cast<std::size_t>(-1);
inline constexpr bool kCannotFail = false;

struct Op {
  std::string_view name;
  ShardRule shard_rule;
  BatchRule batch_rule;
  // Throws data_loss or invalid_argument for invalid attributes. Must not open files: a peer's
  // paths are checked against IterationOptions::data_dirs when the graph runs.
  NodePtr (*make)(SerializedOp op);
  std::size_t input_count;  // or kAnyInputCount: make() checks it
  // kCannotFail: iteration throws only what an input throws, and yields exactly cardinality()
  // elements: the op runs no user function and opens no file, and its spec is right.
  // dataset_traits.cpp says which ops also need inputs of static shapes.
  bool can_fail = true;

  bool takes(std::size_t inputs) const {
    return input_count == kAnyInputCount || inputs == input_count;
  }
};

std::span<const Op> op_registry();
// unimplemented if this build has no op of that name, which a serialized graph may have.
const Op& known_op(std::string_view name);

}  // namespace cohort::data
