// SPDX-License-Identifier: Apache-2.0
// Numbers in the fields of CSV files. Does not use LibTorch.
#pragma once

#include <cstdint>
#include <string_view>

namespace cohort::data {

// Ignores blanks around the number. Returns false if the text is not a number or is out of range.
bool parse_number(std::string_view text, std::int32_t& value);
bool parse_number(std::string_view text, std::int64_t& value);
bool parse_number(std::string_view text, float& value);
bool parse_number(std::string_view text, double& value);

}  // namespace cohort::data
