// SPDX-License-Identifier: Apache-2.0
// The folder of a CheckpointManager: which checkpoints it has, and which is the latest.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/core/clock.h"
#include "cohort/core/file_descriptor.h"

namespace cohort::checkpoint {

// The steps of all checkpoints of a manager's folder, in order. Throws the errors of the file
// system.
std::vector<std::int64_t> steps_in(const std::string& folder);
// The step that was saved last, if its checkpoint exists; else the last one.
std::optional<std::int64_t> latest_in(const std::string& folder);
std::string path_of_step(const std::string& folder, std::int64_t step);

// Thread-compatible.
class KeptCheckpoints {
 public:
  // Makes the folder, locks it for this manager, and removes unfinished checkpoints. The errors of
  // CheckpointManager's constructor.
  explicit KeptCheckpoints(std::string folder);

  std::string path_of(std::int64_t step) const { return path_of_step(folder_, step); }
  std::vector<std::int64_t> steps() const { return steps_in(folder_); }
  std::optional<std::int64_t> latest() const { return latest_in(folder_); }
  void set_latest(std::int64_t step) const;
  // Removes those that need not stay: all but the last `max_to_keep` (0: none), and one for each
  // `keep_every` (zero: none).
  void remove_old(std::int64_t max_to_keep, Duration keep_every) const;

 private:
  const std::string folder_;
  FileDescriptor lock_;
};

}  // namespace cohort::checkpoint
