// SPDX-License-Identifier: Apache-2.0
// Elements for replicas that have no data.
#pragma once

#include "cohort/core/export.h"
#include "cohort/core/nest.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/data/element.h"

namespace cohort::input {

// Returns a tensor without rows: its first size is 0, and so are other unknown sizes; known ones
// stay. For a scalar it is a zero or "", which only DistributedElement::has_data() distinguishes
// from data.
COHORT_API at::Tensor empty_tensor(const TensorSpec& spec);
COHORT_API Nest empty_element(const ElementSpec& spec);

}  // namespace cohort::input
