// SPDX-License-Identifier: Apache-2.0
// Converts values, specs and errors between the library and the JSON of case files (FORMAT.md, 2).
//
// Both sides of a comparison are converted to one canonical form: the data of a leaf is flat, its
// numbers have the precision of its dtype, and a text is a JSON string if possible.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

#include "cohort/core/error.h"
#include "cohort/core/nest.h"
#include "cohort/data/element.h"
#include "tests/conformance/json.h"

namespace cohort::conformance {

at::ScalarType dtype_of(const std::string& name);
// A JSON string, or {"hex": "00ff"}.
std::string bytes_of(const Json& text);
Json text_of(std::string_view bytes);
// The values of nested arrays in one flat array.
Json flat(const Json& data);
std::string from_hex(std::string_view hex);
std::string to_hex(std::string_view bytes);

// A number, "nan", "inf" or "-inf".
Json json_of_number(double value);
double real_of(const Json& json);

// [dtype, shape, data] or [dtype, shape].
bool is_leaf(const Json& json);
bool is_leaf_spec(const Json& json);
at::Tensor tensor_of(const Json& leaf);
Nest nest_of(const Json& value);
TensorSpec tensor_spec_of(const Json& spec);
ElementSpec spec_of(const Json& spec);

Json json_of(const at::Tensor& tensor);
Json json_of(const Nest& value);
Json json_of(const TensorSpec& spec);
Json json_of(const ElementSpec& spec);
// {"error": "InvalidArgument", "message": …}.
Json json_of(const Error& error);
// The current exception as such an error; rethrows a CaseFault. Call it only inside a catch block.
Json caught_error();

// The canonical form of JSON from a case file.
Json canonical(const Json& json);

}  // namespace cohort::conformance
