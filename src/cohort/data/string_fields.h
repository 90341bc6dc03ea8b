// SPDX-License-Identifier: Apache-2.0
// Strings end in the input pipeline: the messages of what meets one behind it.
#pragma once

#include <optional>
#include <string_view>

#include "cohort/core/export.h"
#include "cohort/core/nest.h"
#include "cohort/data/field_function.h"

namespace cohort::data {

// How strings become numbers that a step can take.
inline constexpr std::string_view kStringRemedy =
    "turn strings into numbers in the input pipeline, with dataset.map() of data::lookup(), "
    "data::to_hash_bucket_fast() or data::to_number() (cohort/data/field_function.h)";

// Where the first strings in a nest are; nullopt if there are none.
COHORT_API std::optional<FieldPath> find_strings(const Nest& nest);
// invalid_argument where an element that is meant for a step has a field of strings; names the
// field, the element's structure and the remedy. `op` is for messages: "server.peek".
COHORT_API void check_no_strings(const Nest& element, std::string_view op);

}  // namespace cohort::data
