// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

namespace cohort::train {

using Json = nlohmann::ordered_json;

// A number as JSON, which has none for those that are not finite: they are texts ("NaN",
// "Infinity", "-Infinity").
Json json_of(double value);
// Throws invalid_argument for anything that json_of() does not make.
double double_of(const Json& json);

}  // namespace cohort::train
