// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/iterators/worker_pipeline.h"

namespace cohort::input {
WorkerPipelinePosition WorkerPipeline::position() const {
  return {.rebatcher_index = rebatcher_->index(),
          .rest = rebatcher_->rest(),
          .leading = shards_.leading(),
          .turn = shards_.turn(),
          .shards = shards_.positions()};
}

void WorkerPipeline::set(WorkerPipelinePosition position) {
  rebatcher_->restore(std::move(position.rest), position.rebatcher_index);
  shards_.set(std::move(position.shards));
  shards_.lead_with(std::move(position.leading));
  shards_.set_turn(position.turn);
}

}  // namespace cohort::input
