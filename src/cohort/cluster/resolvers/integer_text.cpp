// SPDX-License-Identifier: Apache-2.0
#include "cohort/cluster/resolvers/integer_text.h"

#include <charconv>

namespace cohort::internal {
namespace {

constexpr std::string_view kBlanks = " \t\n\r\f\v\x1c\x1d\x1e\x1f";
constexpr std::size_t kQuoteMax = 200;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

std::optional<std::int64_t> integer_of_text(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return std::nullopt;
  text = text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
  std::string digits;
  if (text.front() == '+' || text.front() == '-') {
    if (text.front() == '-') digits = "-";
    text.remove_prefix(1);
  }
  if (text.empty() || !is_digit(text.front()) || !is_digit(text.back())) return std::nullopt;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (is_digit(text[i])) {
      digits += text[i];
    } else if (text[i] != '_' || !is_digit(text[i + 1])) {
      return std::nullopt;
    }
  }
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc()) return std::nullopt;
  return value;
}

std::string quote(std::string_view text) {
  std::string result = "\"";
  if (text.size() <= kQuoteMax) {
    result.append(text);
  } else {
    result.append(text.substr(0, kQuoteMax / 2)).append(" … ");
    result.append(text.substr(text.size() - kQuoteMax / 2));
  }
  return result.append("\"");
}

}  // namespace cohort::internal
