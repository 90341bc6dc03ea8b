// SPDX-License-Identifier: Apache-2.0
// A pipeline that reads files, described in JSON.
#pragma once

#include "tests/interop/json_form.h"

namespace cohort::interop {

// The elements of {"op": "tf_record" | "text_line" | "fixed_length_record" | "csv",
// "files": [path], "compression": "", …}, each a list of its fields. Then, where they are given:
// "shard": [count, index], "batch": size, "features": {name: specification} to be parsed.
Json elements_of(const Json& pipeline);

}  // namespace cohort::interop
