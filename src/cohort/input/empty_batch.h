// SPDX-License-Identifier: Apache-2.0
// Elements for replicas that have no data.
#pragma once

#include "cohort/core/export.h"
#include "cohort/core/nest.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/data/batch_parts.h"
#include "cohort/data/element.h"

namespace cohort::input {

using data::empty_tensor;

// As data::empty_tensor() for each field. Only DistributedElement::has_data() distinguishes that of
// a scalar from data.
COHORT_API Nest empty_element(const ElementSpec& spec);

}  // namespace cohort::input
