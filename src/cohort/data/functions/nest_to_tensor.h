// SPDX-License-Identifier: Apache-2.0
// Converts host values (numbers, strings, lists) to fields of an element.
#pragma once

#include "cohort/data/element.h"

namespace cohort::data {

// Converts a number, a string, a tensor, or nested lists of them to one tensor of `dtype`. Integers
// lose upper bits that the dtype does not have, as in tf. invalid_argument for a real number where
// `dtype` is integral, a string where it is numeric, and lists of unequal lengths.
at::Tensor tensor_of(const Nest& value, at::ScalarType dtype);
// The fields of an item with the spec `spec`; invalid_argument if the structure, a dtype or a shape
// does not fit.
Fields fields_of(const Nest& item, const ElementSpec& spec);
// The element with host values converted to tensors: int64, float32, bool or strings.
Nest with_tensors(const Nest& element);

}  // namespace cohort::data
