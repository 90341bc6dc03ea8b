// SPDX-License-Identifier: Apache-2.0
// Looks at checkpoints without a model: for the command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/core/export.h"

namespace cohort::checkpoint {

struct TensorSummary {
  std::string name = {};
  std::string spec = {};  // "float32[10, 784]"
  std::string file = {};  // or several, if several processes have written it
  std::uint64_t bytes = 0;
};
struct Summary {
  std::string path = {};
  std::int64_t step = 0;
  std::string time = {};
  std::string strategy = {};
  std::string cohort = {};
  std::uint64_t bytes = 0;
  std::vector<TensorSummary> tensors = {};
  std::vector<std::string> states = {};                          // keys of optimizers' states
  std::vector<std::string> positions = {};                       // names
  std::vector<std::pair<std::string, std::string>> values = {};  // names and JSON texts
};

// These throw as Checkpoint::read() does.
COHORT_API Summary summary_of(const std::string& path);
// The checkpoints of a manager's folder, the oldest first, or the path itself if it is a
// checkpoint.
COHORT_API std::vector<std::string> checkpoints_in(const std::string& path);
// The path of the latest one, which is the path itself if it is a checkpoint; not_found if there is
// none.
COHORT_API std::string latest_of(const std::string& path);
// Reads every byte.
COHORT_API void verify(const std::string& path);

// How a tensor, a state or a value differs.
struct Difference {
  std::string name = {};
  std::string what = {};  // "only in the first", "float32[2] and float32[3]", "3 of 10 elements"
};
COHORT_API std::vector<Difference> difference(const std::string& a, const std::string& b);

// Writes the values of all variables into one safetensors file. `prefix` is left out of names that
// begin with it; nullopt: "<model>/" if all names begin with the same one. Returns how many were
// written. Throws invalid_argument if no variable would be written.
COHORT_API std::size_t export_values(const std::string& path, const std::string& file,
                                     const std::optional<std::string>& prefix = {});

}  // namespace cohort::checkpoint
