// SPDX-License-Identifier: Apache-2.0
// Values as lossless JSON: byte strings in hexadecimal, floats as their bits.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "cohort/core/nest.h"
#include "cohort/data/example.h"

namespace cohort::interop {

using Json = nlohmann::json;

std::string to_hex(std::string_view bytes);
// Throws invalid_argument for anything but pairs of hexadecimal digits.
std::string from_hex(std::string_view hex);

// {name: {"int64": [1]} or {"float": [bits]} or {"bytes": [hex]} or {}}
Json json_of(const Features& features);
Features features_of(const Json& json);

// {"context": features, "feature_lists": {name: [feature]}}
Json json_of(const SequenceExample& example);
SequenceExample sequence_example_of(const Json& json);

// [dtype, sizes, values in row-major order], strings in hexadecimal, floats as their bits.
Json json_of(const at::Tensor& tensor);

}  // namespace cohort::interop
