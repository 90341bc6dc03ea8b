// SPDX-License-Identifier: Apache-2.0
// What stands for data that a replica has not got.
#pragma once

#include "cohort/core/export.h"
#include "cohort/core/nest.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/data/element.h"

namespace cohort {

// No rows: the first size is 0, other unknown ones too, known ones stay. A scalar is a zero or "",
// not distinguishable from data by itself (DistributedElement::has_data()).
COHORT_API at::Tensor dummy_tensor(const TensorSpec& spec);
COHORT_API Nest dummy_element(const ElementSpec& spec);

}  // namespace cohort
