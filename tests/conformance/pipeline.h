// SPDX-License-Identifier: Apache-2.0
// Builds the pipeline of a case as a dataset (FORMAT.md, 4).
#pragma once

#include <memory>

#include "cohort/data/dataset.h"
#include "cohort/data/dataset_options.h"
#include "tests/conformance/case_state.h"
#include "tests/conformance/json.h"

namespace cohort::conformance {

// Throws the library's errors, and a CaseFault for an op, a field or a function that is not in
// FORMAT.md.
Dataset build_pipeline(const Json& ops, const std::shared_ptr<CaseState>& state,
                       const InputContext& context = {});

// DatasetOptions with the field names of the op `options`; null where unset.
Json json_of(const DatasetOptions& options);

}  // namespace cohort::conformance
