// SPDX-License-Identifier: Apache-2.0
// Divides global batches into mini-batches for replicas (spec 3.3, 3.4).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/data/dataset.h"
#include "cohort/data/dataset_options.h"

namespace cohort {

// The sizes of one worker's mini-batches, ordered by step and then by replica, as a cyclic list. In
// every step the sizes of all workers add up to the global batch and differ by at most 1.
COHORT_API std::vector<std::int64_t> rebatch_sizes(std::int64_t global_batch, std::int64_t workers,
                                                   std::int64_t replicas_per_worker,
                                                   std::int64_t worker);

// The size of the dataset's batches; -1 if neither its spec nor its ops determine it.
// invalid_argument if elements have a scalar field, since then they are not batches.
COHORT_API std::int64_t infer_batch_size(const Dataset& dataset);

struct RebatchPlan {
  std::int64_t workers = 1;
  std::int64_t worker = 0;
  std::int64_t replicas_per_worker = 1;
  std::optional<RebatchMode> mode = {};  // overrides the dataset's own
  // As they will be passed to auto_shard().
  std::optional<AutoShardPolicy> policy = {};
  std::optional<TooFewFiles> too_few_files = {};
  // Whether a thread computes one mini-batch per replica ahead.
  bool prefetch = true;
};

// The dataset with its global batches divided into mini-batches for all replicas; pass it to
// auto_shard() with `workers` and `worker`. Returns the dataset itself for one replica.
COHORT_API Dataset rebatch_for(const Dataset& dataset, const RebatchPlan& plan);

}  // namespace cohort
