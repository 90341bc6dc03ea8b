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
#include "cohort/input/internal/feed.h"
#include "cohort/input/internal/plan.h"

namespace cohort::input {

// A value type.
struct JobPosition {
  Dealing dealing = Dealing::by_data;
  bool is_own = true;  // pipelines of a job of these numbers; false: taken over
  bool votes = false;
  bool is_over = false;
  std::int64_t num_local_replicas = 1;
  std::int64_t num_pipeline_replicas = 1;  // of the job that the pipelines belong to
  std::optional<std::int64_t> steps_left = {};
  std::uint64_t steps = 0;
  std::uint64_t seed = 0;
  std::uint64_t pass = 0;
  std::string spec = {};
  std::vector<std::vector<FeedPosition>> workers = {};  // the feeds of each

  // Everything except `workers`, and the feeds of one worker.
  void write_head(ByteWriter& writer) const;
  static Bytes encode_feeds(const std::vector<FeedPosition>& feeds);
  // Decodes what write_head() wrote and, after it, the number of workers and encode_feeds() of
  // each.
  static JobPosition decode(std::span<const std::byte> bytes);

  // Whether a job can have such numbers.
  bool is_sound() const;
  bool has_numbers_of(const Plan& plan) const;
};

// The feeds of `plan`'s worker after a job of other numbers: every remaining element goes to one
// feed of the new job. With Dealing::everything each worker continues one old worker instead.
std::vector<FeedPosition> take_over(JobPosition job, const Plan& plan);

}  // namespace cohort::input
