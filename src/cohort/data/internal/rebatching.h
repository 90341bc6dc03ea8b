// SPDX-License-Identifier: Apache-2.0
// What ops that cut batches ask of their input.
#pragma once

#include <string_view>

#include "cohort/data/internal/node.h"

namespace cohort::data {

// invalid_argument naming `op` where an element of the input is known to have a scalar, which
// cannot be cut.
void check_batches(const Node& input, std::string_view op);

}  // namespace cohort::data
