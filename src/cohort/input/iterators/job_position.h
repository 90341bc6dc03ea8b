// SPDX-License-Identifier: Apache-2.0
// The position of a whole job in a distributed dataset: what save() writes and restore() reads
// (docs/formats/distributed_position.md).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/input/distribution/current_distribution.h"
#include "cohort/input/distribution/input_distribution.h"
#include "cohort/input/iterators/worker_pipeline.h"

namespace cohort::input {

// The part of a position that is the same on all workers. A value type.
struct PassState {
  PassOrder order = {};
  ShardingMode sharding_mode = ShardingMode::by_data;
  bool is_own = true;                      // pipelines of a job of these numbers; false: taken over
  std::int64_t num_pipeline_replicas = 1;  // of the job that the pipelines belong to
  bool reduces_status = false;
  std::optional<std::int64_t> steps_left = {};  // if all workers know them
  std::uint64_t steps = 0;
  bool is_over = false;
};

// A value type.
struct JobPosition : PassState {
  std::int64_t num_local_replicas = 1;
  std::string spec = {};
  std::vector<std::vector<WorkerPipelinePosition>> workers = {};  // the pipelines of each

  static Bytes encode_pipelines(const std::vector<WorkerPipelinePosition>& pipelines);
  // The position whose workers have encoded `all_pipelines`, in the place of `workers`.
  Bytes encode(std::vector<Bytes> all_pipelines) const;
  static JobPosition decode(std::span<const std::byte> bytes);

  // Whether a job can have such numbers.
  bool is_sound() const;
  bool has_numbers_of(const InputDistribution& distribution) const;
};

// The pipelines of the worker after a job of other numbers: every remaining element goes to one
// pipeline of the new job. With ShardingMode::everything each worker continues one old worker
// instead.
std::vector<WorkerPipelinePosition> take_over(JobPosition job,
                                              const InputDistribution& distribution);

}  // namespace cohort::input
