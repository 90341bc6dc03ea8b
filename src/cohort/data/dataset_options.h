// SPDX-License-Identifier: Apache-2.0
// Options of a pipeline that are not ops (tf.data.Options).
//
//   DatasetOptions options;
//   options.auto_shard_policy = AutoShardPolicy::data;
//   const Dataset sharded = dataset.with_options(options);
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

#include "cohort/core/export.h"
#include "cohort/core/nest.h"

namespace cohort {

// Compression of a whole file.
enum class Compression : std::uint8_t { none, zlib, gzip };
// "", "ZLIB" or "GZIP", as tf names them; anything else is invalid_argument.
COHORT_API Compression parse_compression(std::string_view name);
COHORT_API std::string_view name_of(Compression compression);

// Tells an input pipeline which one of several it is (tf.distribute.InputContext).
// A value type.
struct COHORT_API InputContext {
  std::int64_t num_input_pipelines = 1;
  std::int64_t input_pipeline_id = 0;
  std::int64_t num_replicas_in_sync = 1;

  // global / num_replicas_in_sync; invalid_argument if it is not divisible.
  std::int64_t get_per_replica_batch_size(std::int64_t global_batch_size) const;
  // "tf.distribute.InputContext(input pipeline id 0, total: 2)"
  std::string to_string() const;
  friend std::ostream& operator<<(std::ostream& out, const InputContext& context) {
    return out << context.to_string();
  }
};

// How distribute_dataset() divides a dataset among workers.
enum class AutoShardPolicy : std::int8_t {
  off = -1,       // every worker reads everything
  automatic = 0,  // by file if the graph allows it, else by data
  file = 1,       // every worker reads its own files
  data = 2,       // every worker yields every num_workers-th element
  hint = 3,       // replaces each shard(kShardHint, …) of the graph
};
// The bytes of a dataset or of an iterator's position do not contain the state of the random number
// generator that functions use. When such a dataset is serialized, or such an iterator saved (there
// only if this is set): warns once, does nothing, or throws failed_precondition.
enum class ExternalStatePolicy : std::uint8_t { warn = 0, ignore = 1, fail = 2 };
// How global batches are divided into mini-batches for replicas.
enum class RebatchMode : std::uint8_t {
  automatic = 0,  // as tf: `split` if sharded by data or if the batch size is unknown, else `sized`
  split = 1,      // splits each batch into N parts
  sized = 2,      // regroups the rows into batches of a cyclic list of sizes
};
// The behaviour of AutoShardPolicy::file if there are fewer files than workers.
enum class TooFewFiles : std::uint8_t {
  fail = 0,  // throws on every worker, at the start, naming both counts
  data = 1,  // shards by data instead
};

// A field that has its default value keeps what the dataset's inputs set; the comment beside it
// names its effect if nothing sets it. So a default value cannot undo an earlier setting. A value
// type.
struct COHORT_API DatasetOptions {
  AutoShardPolicy auto_shard_policy = AutoShardPolicy::automatic;
  RebatchMode rebatch = RebatchMode::automatic;
  TooFewFiles too_few_files = TooFewFiles::fail;
  std::optional<bool> deterministic = {};                         // true
  std::optional<ExternalStatePolicy> external_state_policy = {};  // warn
  std::optional<std::int64_t> num_devices = {};                   // serialized, but not used
  // These affect performance only, neither values nor their order.
  std::optional<bool> slack = {};
  std::optional<bool> symbolic_checkpoint = {};
  std::optional<bool> warm_start = {};
  std::optional<std::int64_t> private_threadpool_size = {};  // 0: chosen at run time
  std::optional<std::int64_t> max_intra_op_parallelism = {};
  std::optional<bool> autotune = {};
  std::optional<std::int64_t> autotune_cpu_budget = {};
  std::optional<std::int64_t> autotune_ram_budget = {};  // bytes
  std::optional<bool> apply_default_optimizations = {};

  // These options, overridden by each field of `later` that does not have its default value. Warns
  // if both set a field and differ.
  DatasetOptions merged(const DatasetOptions& later) const;
  bool operator==(const DatasetOptions&) const = default;
};

}  // namespace cohort
