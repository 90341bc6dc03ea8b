// SPDX-License-Identifier: Apache-2.0
// The first op of a pipeline.
#pragma once

#include "cohort/data/dataset.h"
#include "tests/conformance/op.h"

namespace cohort::conformance {

Dataset build_source(const Op& op);

}  // namespace cohort::conformance
