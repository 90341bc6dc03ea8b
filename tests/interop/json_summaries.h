// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tests/interop/json_form.h"

namespace cohort::interop {

// Writes summaries into a folder. Each is {"kind": "scalar" | "histogram" | "text" | "image",
// "tag", "step", "value"}; the value of an image is {"sizes": […], "bytes": hex}.
void write_summaries(const std::string& folder, const Json& summaries);

}  // namespace cohort::interop
