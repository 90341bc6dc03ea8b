// SPDX-License-Identifier: Apache-2.0
// All dataset ops. A new one adds its prototype and its row (README.md, "How to add an op").
#include <algorithm>
#include <array>

#include "cohort/data/ops/op_registry.h"

namespace cohort::data {

using MakeOp = NodePtr(SerializedOp op);
MakeOp make_assertion, make_batch, make_cache, make_concatenate, make_csv, make_filter,
    make_flat_map, make_from_generator, make_fixed_length_record, make_from_tensor_slices,
    make_from_tensors, make_idx, make_ignore_errors, make_interleave, make_map, make_map_field,
    make_options, make_padded_batch, make_parallel_batch, make_parse_example, make_prefetch,
    make_range, make_rebatch, make_rebatch_split, make_repeat, make_shard, make_shard_by_index,
    make_shuffle, make_skip, make_take, make_typed_map, make_unbatch, make_unique, make_with_spec,
    make_zip, make_text_line, make_tf_record;

std::span<const Op> op_registry() {
  static constexpr std::array kOps{
      Op{"assert_cardinality", ShardRule::remove, BatchRule::pass_through, make_assertion, 1},
      Op{"batch", ShardRule::pass_through, BatchRule::own, make_batch, 1, kCannotFail},
      Op{"cache", ShardRule::pass_through, BatchRule::pass_through, make_cache, 1},
      Op{"concatenate", ShardRule::all_inputs, BatchRule::common, make_concatenate, 2, kCannotFail},
      Op{"csv", ShardRule::refuse, BatchRule::unknown, make_csv, kAnyInputCount},
      Op{"filter", ShardRule::pass_through, BatchRule::pass_through, make_filter, 1},
      Op{"fixed_length_record", ShardRule::reader, BatchRule::unknown, make_fixed_length_record,
         kAnyInputCount},
      Op{"flat_map", ShardRule::dataset_function, BatchRule::unknown, make_flat_map, 1},
      Op{"from_generator", ShardRule::source, BatchRule::unknown, make_from_generator, 0},
      Op{"from_tensor_slices", ShardRule::source, BatchRule::unknown, make_from_tensor_slices, 0,
         kCannotFail},
      Op{"from_tensors", ShardRule::source, BatchRule::unknown, make_from_tensors, 0, kCannotFail},
      Op{"idx", ShardRule::source, BatchRule::unknown, make_idx, 0},
      Op{"ignore_errors", ShardRule::refuse, BatchRule::unknown, make_ignore_errors, 1},
      Op{"interleave", ShardRule::dataset_function, BatchRule::unknown, make_interleave, 1},
      Op{"map", ShardRule::pass_through, BatchRule::unknown, make_map, 1},
      Op{"map_field", ShardRule::pass_through, BatchRule::pass_through, make_map_field, 1},
      Op{"options", ShardRule::pass_through, BatchRule::pass_through, make_options, 1, kCannotFail},
      Op{"padded_batch", ShardRule::pass_through, BatchRule::own, make_padded_batch, 1},
      Op{"parallel_batch", ShardRule::pass_through, BatchRule::unknown, make_parallel_batch, 1},
      Op{"parse_example", ShardRule::pass_through, BatchRule::pass_through, make_parse_example, 1},
      Op{"prefetch", ShardRule::pass_through, BatchRule::pass_through, make_prefetch, 1,
         kCannotFail},
      Op{"range", ShardRule::source, BatchRule::unknown, make_range, 0, kCannotFail},
      Op{"rebatch", ShardRule::pass_through, BatchRule::unknown, make_rebatch, 1},
      Op{"rebatch_split", ShardRule::pass_through, BatchRule::unknown, make_rebatch_split, 1},
      Op{"repeat", ShardRule::pass_through, BatchRule::pass_through, make_repeat, 1, kCannotFail},
      Op{"shard", ShardRule::pass_through, BatchRule::pass_through, make_shard, 1, kCannotFail},
      Op{"shard_by_index", ShardRule::refuse, BatchRule::unknown, make_shard_by_index, 1,
         kCannotFail},
      Op{"shuffle", ShardRule::pass_through, BatchRule::pass_through, make_shuffle, 1, kCannotFail},
      Op{"skip", ShardRule::pass_through, BatchRule::pass_through, make_skip, 1, kCannotFail},
      Op{"take", ShardRule::pass_through, BatchRule::pass_through, make_take, 1, kCannotFail},
      Op{"text_line", ShardRule::reader, BatchRule::unknown, make_text_line, kAnyInputCount},
      Op{"tf_record", ShardRule::reader, BatchRule::unknown, make_tf_record, kAnyInputCount},
      Op{"typed_map", ShardRule::pass_through, BatchRule::unknown, make_typed_map, 1},
      Op{"unbatch", ShardRule::pass_through, BatchRule::unknown, make_unbatch, 1},
      Op{"unique", ShardRule::refuse, BatchRule::unknown, make_unique, 1},
      Op{"with_spec", ShardRule::pass_through, BatchRule::pass_through, make_with_spec, 1},
      Op{"zip", ShardRule::all_inputs, BatchRule::common, make_zip, kAnyInputCount, kCannotFail},
  };
  return kOps;
}

const Op& known_op(std::string_view name) {
  const std::span<const Op> ops = op_registry();
  const auto found = std::ranges::find(ops, name, &Op::name);
  COHORT_CHECK(found != ops.end(), ErrorCode::unimplemented,
               "[data.deserialize] expected an op of this build, got '", name.substr(0, 64),
               "'; the sender runs another version of Cohort");
  return *found;
}

}  // namespace cohort::data
