// SPDX-License-Identifier: Apache-2.0
// Divides a dataset among workers (tf's auto-shard rewrite). Each worker runs a graph of its own,
// without communication.
//
//   Dataset mine = auto_shard(dataset, {.num_workers = 4, .index = 1});
//   std::puts(explain(dataset, 4).c_str());
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/data/dataset.h"
#include "cohort/data/dataset_options.h"

namespace cohort {

struct AutoShardOptions {
  std::int64_t num_workers = 1;
  std::int64_t index = 0;         // of this worker
  std::int64_t num_replicas = 1;  // of all workers: DATA splits a rebatched batch into so many
  // Override the dataset's own options.
  std::optional<AutoShardPolicy> policy = {};
  std::optional<RebatchMode> rebatch = {};
  // If set, too few files are detected now, with the same result on every worker. If not, each
  // worker detects them at its first element: one with a file fails, one without a file is empty.
  std::optional<TooFewFiles> too_few_files = {};
};

// How a dataset is divided among workers, and why. A value type.
struct COHORT_API ShardDecision {
  // A sharded input of file names.
  struct FileStream {
    std::string reader;                      // the op that reads the files
    std::optional<std::int64_t> file_count;  // nullopt: unknown without running the graph
  };
  AutoShardPolicy asked = AutoShardPolicy::automatic;
  AutoShardPolicy taken = AutoShardPolicy::off;
  std::string reason;
  std::vector<FileStream> files;  // with FILE
  std::string refused_by;         // the op that made FILE impossible; empty: possible, or not tried
  std::int64_t hints = 0;         // with HINT: the number of placeholders replaced
  bool is_split = false;          // DATA replaced a rebatch by a rebatch_split
  bool is_by_index = false;       // with DATA, a worker does not compute other workers' elements
  std::vector<std::string> warnings;

  // The smallest file_count of any stream; nullopt if one is unknown.
  std::optional<std::int64_t> file_count() const;
  // "FILE (AUTO asked): 'flat_map' reads 10 files".
  std::string to_string() const;
};

// The dataset that worker `index` of `num_workers` runs. invalid_argument for a bad option;
// not_found if the policy is FILE and the dataset's files cannot be sharded.
COHORT_API Dataset auto_shard(const Dataset& dataset, const AutoShardOptions& options);
// The decision of auto_shard(), equal on all workers.
COHORT_API ShardDecision shard_decision(const Dataset& dataset, const AutoShardOptions& options);

// A text with one line per worker, which tells what it reads, and the graph of worker 0. Runs none
// of the graphs, but may preview a few elements.
COHORT_API std::string explain(const Dataset& dataset, std::int64_t workers,
                               std::int64_t replicas_per_worker = 1);

// "FILE", "AUTO", …
COHORT_API std::string name_of(AutoShardPolicy policy);

}  // namespace cohort
