// SPDX-License-Identifier: Apache-2.0
// The input check of ops that rebatch.
#pragma once

#include <string_view>

#include "cohort/data/graph/node.h"

namespace cohort::data {

// invalid_argument, naming `op`, if elements of the input are known to have a scalar field, which
// has no rows.
void check_batches(const Node& input, std::string_view op);

}  // namespace cohort::data
