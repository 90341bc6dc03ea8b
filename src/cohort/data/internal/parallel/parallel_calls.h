// SPDX-License-Identifier: Apache-2.0
// A stage that applies a function to several of its input's elements at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "cohort/data/dataset.h"
#include "cohort/data/internal/stage.h"

namespace cohort::data {

// Turns the input's element number `index` into the result, in place. Called from several threads
// at once; what it throws takes the element's place.
using ElementFunction =
    std::function<void(Fields& fields, std::uint64_t index, std::uint64_t stage_seed)>;

struct ParallelCallsOptions {
  std::int64_t calls = kAutotune;  // or > 0
  bool is_deterministic = true;    // results in the input's order
  std::uint64_t seed = 0;          // handed to the function; saved with the position
};

// Threads of a stage, whatever number a graph asks for.
inline constexpr std::int64_t kThreadsMax = 256;

// How many threads kAutotune may come to.
std::size_t parallel_calls_max(const DatasetOptions& options);

// invalid_argument for calls that are no degree, naming `op`.
void check_parallel_calls(std::int64_t calls, std::string_view op);

// `cancellation` is that of the input, which the stage cancels at its end.
std::unique_ptr<Stage> start_parallel_calls(const Node& node,
                                            std::shared_ptr<Cancellation> cancellation,
                                            std::unique_ptr<Stage> input, ElementFunction function,
                                            const ParallelCallsOptions& options,
                                            std::size_t threads_max);

}  // namespace cohort::data
