// SPDX-License-Identifier: Apache-2.0
// What a pipeline is told besides its ops (tf.data.Options).
//
//   DatasetOptions options;
//   options.auto_shard_policy = AutoShardPolicy::data;
//   dataset.with_options(options)
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cohort/core/export.h"
#include "cohort/core/nest.h"

namespace cohort {

// How distribute_dataset() deals a dataset out to workers.
enum class AutoShardPolicy : std::int8_t {
  off = -1,       // every worker reads everything
  automatic = 0,  // by file where the graph allows it, else by data
  file = 1,       // every worker reads its own files
  data = 2,       // every worker reads everything and keeps its share
  hint = 3,       // at the shard(kShardHint, …) of the graph
};
// What becomes of the state of functions that draw random numbers where a dataset is serialised, or
// an iterator saved (there only where this is set): one warning, silence, failed_precondition.
enum class ExternalStatePolicy : std::uint8_t { warn = 0, ignore = 1, fail = 2 };
// Which of its two arithmetics rebatching uses (spec of the original: it depends on the source).
enum class RebatchMode : std::uint8_t {
  automatic = 0,  // as the original chooses
  split = 1,      // each incoming batch into N parts
  sized = 2,      // the stream of elements anew into sizes of a cyclic list
};
// What FILE does with fewer files than workers.
enum class TooFewFiles : std::uint8_t {
  fail = 0,  // on every worker, at the start, naming both counts
  data = 1,  // deals by data instead
};

// A field that is not set keeps what the inputs say; what it acts as then stands beside it. A value
// type. Setting a field back to what it acts as by default cannot undo an earlier setting.
struct COHORT_API DatasetOptions {
  AutoShardPolicy auto_shard_policy = AutoShardPolicy::automatic;
  RebatchMode rebatch = RebatchMode::automatic;
  TooFewFiles too_few_files = TooFewFiles::fail;
  std::optional<bool> deterministic = {};                         // true
  std::optional<ExternalStatePolicy> external_state_policy = {};  // warn
  std::optional<std::int64_t> num_devices = {};  // only travels: nothing here reads it
  // Performance alone: neither values nor their order change.
  std::optional<bool> slack = {};
  std::optional<bool> symbolic_checkpoint = {};
  std::optional<bool> warm_start = {};
  std::optional<std::int64_t> private_threadpool_size = {};  // 0: chosen at run time
  std::optional<std::int64_t> max_intra_op_parallelism = {};
  std::optional<bool> autotune = {};
  std::optional<std::int64_t> autotune_cpu_budget = {};
  std::optional<std::int64_t> autotune_ram_budget = {};  // bytes
  std::optional<bool> apply_default_optimizations = {};

  // `later` over this, field by field: a field of `later` that has its default keeps this one's.
  // Warns where both are set and differ; the later wins.
  DatasetOptions merged(const DatasetOptions& later) const;
  bool operator==(const DatasetOptions&) const = default;
};

}  // namespace cohort
