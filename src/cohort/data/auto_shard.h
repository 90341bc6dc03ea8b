// SPDX-License-Identifier: Apache-2.0
// One dataset dealt out to several workers (tf's auto-shard rewrite): each gets a graph of its own,
// and no worker needs to ask another.
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
  std::int64_t num_replicas = 1;  // of all workers: what DATA splits a rebatched batch into
  // In place of the dataset's own.
  std::optional<AutoShardPolicy> policy = {};
  std::optional<RebatchMode> rebatch = {};
  // What fewer files than workers lead to, found out now and alike on every worker. Without it each
  // worker's shard finds out for itself at its first element: a worker without a file is empty, one
  // with a file fails.
  std::optional<TooFewFiles> too_few_files = {};
};

// How a dataset is dealt out, and why. A value type.
struct COHORT_API ShardDecision {
  // Files are dealt out where they enter an op that reads them.
  struct FileStream {
    std::string reader;                      // that op
    std::optional<std::int64_t> file_count;  // where it is known without running anything
  };
  AutoShardPolicy asked = AutoShardPolicy::automatic;
  AutoShardPolicy taken = AutoShardPolicy::off;
  std::string reason;
  std::vector<FileStream> files;  // of FILE
  std::string refused_by;    // the op that FILE could not pass; empty: it was not tried or went
  std::int64_t hints = 0;    // of HINT: the placeholders that were filled in
  bool is_split = false;     // DATA made a rebatch_split of a rebatch
  bool is_by_index = false;  // DATA leaves other workers' elements unmade
  std::vector<std::string> warnings;

  // The fewest files of any stream, where known.
  std::optional<std::int64_t> file_count() const;
  // "FILE (AUTO asked): 'flat_map' reads 10 files".
  std::string to_string() const;
};

// What worker `index` of `num_workers` runs. invalid_argument for a bad option; not_found where
// FILE was asked for and the dataset reads no files.
COHORT_API Dataset auto_shard(const Dataset& dataset, const AutoShardOptions& options);
// The same decision alone: equal on all workers.
COHORT_API ShardDecision shard_decision(const Dataset& dataset, const AutoShardOptions& options);

// Who reads what, a line a worker, and the graphs that would run; runs none of them.
COHORT_API std::string explain(const Dataset& dataset, std::int64_t workers,
                               std::int64_t replicas_per_worker = 1);

// "FILE", "AUTO", …
COHORT_API std::string name_of(AutoShardPolicy policy);

}  // namespace cohort
