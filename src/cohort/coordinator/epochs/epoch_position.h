// SPDX-License-Identifier: Apache-2.0
// Where the workers are in a per-worker dataset: what PerWorkerDataset::save() writes and restore()
// reads (docs/formats/epoch_position.md).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cohort/coordinator/datasets/passes.h"
#include "cohort/coordinator/datasets/worker_datasets.h"
#include "cohort/coordinator/runtime/runtime_context.h"
#include "cohort/core/bytes.h"

namespace cohort::coordinator {

// A value type.
struct EpochPosition {
  Pass pass = {};
  std::string spec = {};                         // of the elements
  std::vector<std::int64_t> cardinalities = {};  // of the dataset of each worker
};

// Any bytes are safe. Throws data_loss for those that encode() has not made; unimplemented for
// those of a newer version.
Bytes encode(const EpochPosition& position);
EpochPosition decode_epoch_position(std::span<const std::byte> bytes);

// The position after the steps that have run; no step may be open (EpochScheduler::hold()). Throws
// failed_precondition, naming the remedy, if several epochs run over the dataset, if one has had an
// error, or if its elements may come in another order when they are read again.
EpochPosition position_in(RuntimeContext& context, const WorkerDatasets& datasets);
// Makes the next epoch over `datasets` the one of the position. Throws invalid_argument, and
// changes nothing, for a position in another dataset, and for one inside of a pass of other numbers
// of workers; failed_precondition while an epoch runs.
void set_position(RuntimeContext& context, const WorkerDatasets& datasets,
                  const EpochPosition& position);

}  // namespace cohort::coordinator
