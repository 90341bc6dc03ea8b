// SPDX-License-Identifier: Apache-2.0
// Values of the host as fields of an element.
#pragma once

#include "cohort/data/element.h"

namespace cohort::data {

// A number, a text, a tensor or lists of them as one tensor of `dtype`. Integers are converted
// and lose their upper bits where the dtype has fewer, as in tf; a real number for an integer, a
// text for a number and lists of unequal lengths are invalid_argument.
at::Tensor tensor_of(const Nest& value, at::ScalarType dtype);
// The fields of an item of that spec; invalid_argument where structure, a dtype or a shape does not
// fit.
Fields fields_of(const Nest& item, const ElementSpec& spec);
// An element whose leaves of the host became tensors: int64, float32, bool and strings.
Nest with_tensors(const Nest& element);

}  // namespace cohort::data
