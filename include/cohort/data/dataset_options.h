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
// Reads tf's names "", "ZLIB" and "GZIP". Throws invalid_argument for any other.
COHORT_API Compression parse_compression(std::string_view name);
COHORT_API std::string_view name_of(Compression compression);

// Tells a dataset function for which of several input pipelines it is called
// (tf.distribute.InputContext). A value type.
struct COHORT_API InputContext {
  std::int64_t num_input_pipelines = 1;
  std::int64_t input_pipeline_id = 0;
  std::int64_t num_replicas_in_sync = 1;

  // global_batch_size / num_replicas_in_sync. Throws invalid_argument if it is not divisible.
  std::int64_t get_per_replica_batch_size(std::int64_t global_batch_size) const;
  // "tf.distribute.InputContext(input pipeline id 0, total: 2)"
  std::string to_string() const;
  friend std::ostream& operator<<(std::ostream& out, const InputContext& context) {
    return out << context.to_string();
  }
};

// How distribute_dataset() divides a dataset between workers.
enum class AutoShardPolicy : std::int8_t {
  off = -1,       // every worker reads everything
  automatic = 0,  // by file if the graph allows it, else by data
  file = 1,       // every worker reads its own files
  data = 2,       // every worker yields every num_workers-th element
  hint = 3,       // each shard(kShardHint, …) of the graph becomes a shard per worker
};
// If functions of a pipeline draw from LibTorch's random number generator, neither a serialized
// dataset nor the saved position of an iterator contains the generator's state. This decides
// whether saving then warns (once), does nothing, or throws failed_precondition. For an iterator it
// applies only if it is set.
enum class ExternalStatePolicy : std::uint8_t { warn = 0, ignore = 1, fail = 2 };
// How global batches are divided into mini-batches for replicas (rebatching).
enum class RebatchMode : std::uint8_t {
  // As tf: `split` if the data is sharded by elements or the batch size is unknown, else `sized`.
  automatic = 0,
  split = 1,  // splits each batch into as many parts as there are replicas (rebatch_split())
  sized = 2,  // regroups the rows into batches of a cyclic list of sizes (rebatch())
};
// Tells AutoShardPolicy::file how to act if there are fewer files than workers. (A coordinator's
// distribute_dataset() always shards by data then.)
enum class TooFewFiles : std::uint8_t {
  fail = 0,  // throws invalid_argument on every worker, at the start, naming both counts
  data = 1,  // shards by data instead
};

// If a field has its default value, the setting of the dataset's inputs applies. So a default value
// cannot undo an earlier setting. The comment at a std::optional field names the value that applies
// if nothing sets the field. A value type.
struct COHORT_API DatasetOptions {
  AutoShardPolicy auto_shard_policy = AutoShardPolicy::automatic;
  RebatchMode rebatch = RebatchMode::automatic;
  TooFewFiles too_few_files = TooFewFiles::fail;
  std::optional<bool> deterministic = {};                         // true
  std::optional<ExternalStatePolicy> external_state_policy = {};  // warn
  // The most threads of an op whose degree is kAutotune, the smaller of the two. 0: one per
  // processor.
  std::optional<std::int64_t> private_threadpool_size = {};
  std::optional<std::int64_t> autotune_cpu_budget = {};
  // true. If it is false, an op whose degree is kAutotune uses that many threads from the start.
  std::optional<bool> autotune = {};
  // These are kept, merged and serialized as in tf, where they affect performance only. They have
  // no effect here. Other options of tf.data.Options do not exist.
  std::optional<bool> slack = {};
  std::optional<bool> apply_default_optimizations = {};

  // Returns these options, overridden by each field of `later` that does not have its default
  // value. Logs a warning if both set a field, to different values.
  DatasetOptions merged(const DatasetOptions& later) const;
  bool operator==(const DatasetOptions&) const = default;
};

}  // namespace cohort
