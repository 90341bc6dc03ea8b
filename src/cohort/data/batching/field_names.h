// SPDX-License-Identifier: Apache-2.0
// The names of an element's fields in messages.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cohort/core/nest.h"

namespace cohort::data {

// In flatten order: "field 0", and in a map or a nested element "field 2, ['b'][1]".
std::vector<std::string> field_names(const Nest& structure);
// One of them; "field 3" if the structure has no such field.
std::string field_name(const Nest& structure, std::size_t field);

}  // namespace cohort::data
