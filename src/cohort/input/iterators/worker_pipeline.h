// SPDX-License-Identifier: Apache-2.0
// The mini-batches of a worker's replicas, in order: reads the worker's shards and rebatches
// what they yield.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "cohort/input/distribution/rebatcher.h"
#include "cohort/input/iterators/shard_reader.h"

namespace cohort::input {

// The position of a pipeline, and the mini-batches drawn from it and not delivered. A value type.
struct WorkerPipelinePosition {
  std::vector<Fields> undelivered = {};
  std::uint64_t rebatcher_index = 0;
  std::vector<Fields> rest = {};
  std::vector<Fields> leading = {};
  std::uint64_t turn = 0;
  std::vector<ShardPosition> shards = {};
};

// Used from one thread at a time.
class WorkerPipeline final : public data::ElementSource {
 public:
  WorkerPipeline(ShardReader shards, std::unique_ptr<Rebatcher> rebatcher)
      : shards_(std::move(shards)), rebatcher_(std::move(rebatcher)) {}

  const ElementSpec& spec() const override { return shards_.spec(); }
  bool next(Fields& fields) override { return rebatcher_->next(shards_, fields); }
  // Without `undelivered`.
  WorkerPipelinePosition position() const {
    return {.rebatcher_index = rebatcher_->index(),
            .rest = rebatcher_->rest(),
            .leading = shards_.leading(),
            .turn = shards_.turn(),
            .shards = shards_.positions()};
  }
  void set(WorkerPipelinePosition position) {
    rebatcher_->restore(std::move(position.rest), position.rebatcher_index);
    shards_.set(std::move(position.shards), std::move(position.leading), position.turn);
  }

 private:
  ShardReader shards_;
  std::unique_ptr<Rebatcher> rebatcher_;
};

}  // namespace cohort::input
