// SPDX-License-Identifier: Apache-2.0
// A stage that applies a function to several elements of its input in parallel.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "cohort/data/dataset.h"
#include "cohort/data/stages/stage.h"

namespace cohort::data {

// Replaces the input's element number `index` by the result, in place. Called concurrently from
// several threads. If it throws, the error replaces the element.
using ElementFunction =
    std::function<void(Fields& fields, std::uint64_t index, std::uint64_t stage_seed)>;

struct ParallelCallsOptions {
  std::int64_t calls = kAutotune;  // or > 0
  bool is_deterministic = true;    // results in the input's order
  std::uint64_t seed = 0;          // passed to the function; saved with the position
};

// The maximum number of threads of a stage, even if a graph requests more.
inline constexpr std::int64_t kThreadsMax = 256;

// The maximum number of threads with kAutotune.
std::size_t parallel_calls_max(const DatasetOptions& options);

// Calls the function for the elements of the node's input.
std::unique_ptr<Stage> start_parallel_calls(const Node& node, const StageContext& context,
                                            ElementFunction function,
                                            const ParallelCallsOptions& options);

}  // namespace cohort::data
