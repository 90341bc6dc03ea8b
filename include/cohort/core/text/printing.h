// SPDX-License-Identifier: Apache-2.0
// Nests as text, for logs and debugging: the structure, the dtype and shape of each tensor, and the
// values of small tensors, similar to how TensorFlow and PyTorch print a batch.
//
//   std::cout << *elements.try_next() << '\n';  // {image: uint8[2, 9, 9], label: int64[2] [7, 1]}
//   std::cout << dataset.element_spec() << '\n';  // {image: uint8[?, 9, 9], label: int64[?]}
#pragma once

#include <concepts>
#include <ostream>
#include <string>

#include "cohort/core/export.h"
#include "cohort/core/nest.h"

namespace cohort {

// "(float32[64, 784], int64[3] [1, 2, 3], string[] "Lima")". Shows the values of tensors in host
// memory that have at most 16; long strings are shortened. Shows host values as they are, and a
// handle as its kind, for example "<iterator>".
COHORT_API std::string to_string(const Nest& nest);

namespace internal {
COHORT_API std::ostream& print_nest(std::ostream& out, const Nest& nest);
}

// Only for a Nest itself: a tensor, which converts to a nest, prints as LibTorch prints it.
template <std::same_as<Nest> T>
std::ostream& operator<<(std::ostream& out, const T& nest) {
  return internal::print_nest(out, nest);
}

}  // namespace cohort
