// SPDX-License-Identifier: Apache-2.0
// A global batch cut for replicas (spec 3.3, 3.4): what its size is, and which sizes each worker's
// mini-batches have.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/data/dataset.h"
#include "cohort/data/dataset_options.h"

namespace cohort {

// Sizes of the mini-batches of one worker, step by step, replica by replica; repeated for ever. In
// every step those of all workers add up to the global batch, and no two differ by more than one.
COHORT_API std::vector<std::int64_t> rebatch_sizes(std::int64_t global_batch, std::int64_t workers,
                                                   std::int64_t replicas_per_worker,
                                                   std::int64_t worker);

// The size of the dataset's batches; -1 where neither its spec nor its ops tell. invalid_argument
// for elements with scalars: they are not batched.
COHORT_API std::int64_t infer_batch_size(const Dataset& dataset);

struct RebatchPlan {
  std::int64_t workers = 1;
  std::int64_t worker = 0;
  std::int64_t replicas_per_worker = 1;
  std::optional<RebatchMode> mode = {};        // in place of the dataset's own
  std::optional<AutoShardPolicy> policy = {};  // that auto_shard will be told
  std::optional<TooFewFiles> too_few_files = {};
  // A thread makes a mini-batch a replica ahead.
  bool prefetch = true;
};

// The dataset with its global batches cut into mini-batches for all replicas; to be given to
// auto_shard with `workers` and `worker`. The dataset itself for one replica.
COHORT_API Dataset rebatch_for(const Dataset& dataset, const RebatchPlan& plan);

}  // namespace cohort
