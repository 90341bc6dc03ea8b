// SPDX-License-Identifier: Apache-2.0
// Computes which elements are in each mini-batch of a worker.
#pragma once

#include <cstdint>
#include <vector>

#include "cohort/data/batch_parts.h"
#include "cohort/data/sharding/selection.h"

namespace cohort::data {

struct IndexShard {
  std::int64_t batch_size = 0;  // 0: distributes single elements
  bool drop_remainder = false;
  std::int64_t parts = 1;  // of each batch
  std::int64_t num_shards = 1;
  std::int64_t index = 0;
};

// Immutable. Thread-safe.
class IndexShardLayout final : public Selection {
 public:
  // `count` elements, or kInfiniteCardinality.
  IndexShardLayout(const IndexShard& shard, std::int64_t count);

  // The number of mini-batches of all workers, or kInfiniteCardinality.
  std::int64_t minibatches() const;
  bool has(std::int64_t minibatch) const { return count_ < 0 || minibatch < minibatches(); }
  // The elements of a mini-batch (numbered over all workers), as rebatch_split divides a batch.
  RowRange rows(std::int64_t minibatch) const;
  // Selects this worker's elements.
  Run run(std::int64_t index) const override;

 private:
  std::int64_t of_worker(std::int64_t number) const {
    return shard_.index + number * shard_.num_shards;
  }
  Run run_in_last_batch(std::int64_t index) const;

  IndexShard shard_;
  std::int64_t count_;
  // The number of this worker's elements before each of its first `parts` mini-batches, and, last,
  // in all of them. The sizes repeat after these, that is, after num_shards full batches.
  std::vector<std::int64_t> before_;
  std::int64_t full_minibatches_ = -1;  // of this worker, in full batches; -1: infinite
  std::int64_t full_elements_ = -1;
};

// How many elements a run of the graph yields: its cardinality, or, if its files are read by
// number, the number of their elements, for which it opens them. kUnknownCardinality if it would
// have to read the files.
std::int64_t count_of_run(const Node& node, const StageContext& context);

}  // namespace cohort::data
