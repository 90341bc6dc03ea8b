// SPDX-License-Identifier: Apache-2.0
// Strategies and distributed datasets of a case (FORMAT.md, 7.2).
#pragma once

#include <functional>
#include <memory>

#include "cohort/input/distributed_dataset.h"
#include "cohort/strategy/strategy.h"
#include "tests/conformance/json.h"
#include "tests/conformance/stream.h"

namespace cohort::conformance {

// Runs `work` with the strategy of a case: once, or at the same time on one thread per worker.
// Returns the only outcome, or {"workers": […]}.
Json with_strategy(const Json& strategy, const std::function<Json(Strategy& strategy)>& work);

InputOptions input_options_of(const Json& json);

// strategy.run() applies `replica_fn` to each element; an empty one leaves elements unchanged.
std::unique_ptr<Subject> subject_of(Strategy& strategy, DistributedDataset dataset,
                                    std::function<Nest(const Nest&)> replica_fn);

// {"replicas": […]}, or the bare value.
Json json_of(const PerReplica<Nest>& value);

}  // namespace cohort::conformance
