// SPDX-License-Identifier: Apache-2.0
// The pipeline of a case as a dataset of the library (FORMAT.md, 4).
#pragma once

#include <memory>

#include "cohort/data/dataset.h"
#include "cohort/data/input_context.h"
#include "tests/conformance/case_state.h"
#include "tests/conformance/json.h"

namespace cohort::conformance {

// Throws what the library throws; a CaseFault for an op, a field of one or a function that
// FORMAT.md does not have.
Dataset build_pipeline(const Json& ops, const std::shared_ptr<CaseState>& state,
                       const InputContext& context = {});

// DatasetOptions under the names of the op `options`; null where unset.
Json json_of(const DatasetOptions& options);

}  // namespace cohort::conformance
