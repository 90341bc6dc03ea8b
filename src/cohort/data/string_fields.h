// SPDX-License-Identifier: Apache-2.0
// Checks that no strings leave the input pipeline, since a training step takes none.
#pragma once

#include <optional>
#include <string_view>

#include "cohort/core/export.h"
#include "cohort/core/nest.h"
#include "cohort/data/field_function.h"

namespace cohort::data {

// For error messages: how to convert strings to numbers.
inline constexpr std::string_view kStringRemedy =
    "turn strings into numbers in the input pipeline, with dataset.map() of data::lookup(), "
    "data::to_hash_bucket_fast() or data::to_number() (cohort/data/field_function.h)";

// The path of the first string field; nullopt if there is none.
COHORT_API std::optional<FieldPath> find_strings(const Nest& nest);
// invalid_argument if the element has a string field, naming the field, the element's structure and
// the remedy. `op` is for messages: "server.peek".
COHORT_API void check_no_strings(const Nest& element, std::string_view op);

}  // namespace cohort::data
