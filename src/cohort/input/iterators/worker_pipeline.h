// SPDX-License-Identifier: Apache-2.0
// The mini-batches of a worker's replicas, in order: reads the worker's shards and rebatches
// what they yield.
#pragma once

#include <memory>
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
  WorkerPipelinePosition position() const;
  void set(WorkerPipelinePosition position);

 private:
  ShardReader shards_;
  std::unique_ptr<Rebatcher> rebatcher_;
};

}  // namespace cohort::input
