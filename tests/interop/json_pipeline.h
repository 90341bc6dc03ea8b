// SPDX-License-Identifier: Apache-2.0
// Pipelines that read files, described in JSON.
#pragma once

#include "tests/interop/json_form.h"

namespace cohort::interop {

// The elements of {"op": "tf_record" | "text_line" | "fixed_length_record" | "csv",
// "files": [path], "compression": "", …}, each as a list of its fields. Optional, in this order:
// "shard": [count, index], "batch": size, "features": {name: specification} for a parser.
Json elements_of(const Json& pipeline);

}  // namespace cohort::interop
