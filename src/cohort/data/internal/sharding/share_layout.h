// SPDX-License-Identifier: Apache-2.0
// Which elements each mini-batch of a worker is made of, by arithmetic alone.
#pragma once

#include <cstdint>
#include <vector>

#include "cohort/data/internal/sharding/selection.h"

namespace cohort::data {

struct Share {
  std::int64_t batch_size = 0;  // 0: elements are dealt out as they are
  bool drop_remainder = false;
  std::int64_t parts = 1;  // of each batch
  std::int64_t num_shards = 1;
  std::int64_t index = 0;
};

// Immutable. Thread-safe.
class ShareLayout final : public Selection {
 public:
  struct Rows {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t length() const { return end - begin; }
  };

  // `count` elements, or kInfiniteCardinality.
  ShareLayout(const Share& share, std::int64_t count);

  // Of all workers; kInfiniteCardinality.
  std::int64_t minibatches() const;
  bool has(std::int64_t minibatch) const { return count_ < 0 || minibatch < minibatches(); }
  // As rebatch_split cuts a batch.
  Rows rows(std::int64_t minibatch) const;
  // This worker's elements.
  Run run(std::int64_t index) const override;

 private:
  std::int64_t of_worker(std::int64_t number) const {
    return share_.index + number * share_.num_shards;
  }
  Run run_in_last_batch(std::int64_t index) const;

  Share share_;
  std::int64_t count_;
  // Full batches repeat their cuts every num_shards batches, which are `parts` mini-batches of this
  // worker: how many elements come before each of them.
  std::vector<std::int64_t> before_;
  std::int64_t full_minibatches_ = -1;  // of this worker, of full batches; -1: no end
  std::int64_t full_elements_ = -1;
};

// How many elements a run of the graph yields: its cardinality, or what its files say when they are
// opened, where they are read by number. kUnknownCardinality where only reading tells.
std::int64_t count_of_run(const Node& node, const StageContext& context);

}  // namespace cohort::data
