// SPDX-License-Identifier: Apache-2.0
// The kinds of cases (FORMAT.md, 7): each runs a case and returns its outcome in the form of
// `expect`.
#pragma once

#include <map>
#include <string>

#include "cohort/data/dataset.h"
#include "tests/conformance/json.h"

namespace cohort::conformance {

using Kind = Json (*)(const Json& test_case);
const std::map<std::string, Kind>& kinds();

Json run_dataset(const Json& test_case);
Json run_distribute(const Json& test_case);
Json run_multi_device(const Json& test_case);
Json run_sizes(const Json& test_case);
Json run_values(const Json& test_case);
Json run_dummy(const Json& test_case);
Json run_optional(const Json& test_case);
Json run_input_context(const Json& test_case);
Json run_value_context(const Json& test_case);
Json run_input_options(const Json& test_case);
Json run_crc(const Json& test_case);
Json run_tfrecord_write(const Json& test_case);
Json run_tfrecord_random(const Json& test_case);
Json run_example_encode(const Json& test_case);
Json run_example_decode(const Json& test_case);
Json run_parse_example(const Json& test_case);

// {"error": …} or {"build_error": …}, depending on the member that the case has.
Json error_outcome(const Json& test_case, Json error);

}  // namespace cohort::conformance
