// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/text/one_line.h"

#include <fmt/format.h>

#include <algorithm>

namespace cohort::internal {
namespace {

// The length in bytes of the control character that `text` begins with, 0 if it is none. The
// control characters of Unicode above 127 are c2 80 to c2 9f. Newline and tab do not count.
std::size_t control_bytes(std::string_view text) {
  const auto byte = static_cast<unsigned char>(text[0]);
  if (byte == '\n' || byte == '\t') return 0;
  if (byte < 0x20 || byte == 0x7f) return 1;
  const auto next = static_cast<unsigned char>(text.size() > 1 ? text[1] : '\0');
  return byte == 0xc2 && next >= 0x80 && next < 0xa0 ? 2 : 0;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t escaped = control_bytes(text);
    if (escaped == 0) result += text[0];
    for (const char each : text.substr(0, escaped))
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(each));
    text.remove_prefix(std::max<std::size_t>(escaped, 1));
  }
  return result;
}

std::string one_line(std::string_view text) {
  std::string line;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r') continue;
    if (text[i] != '\n') {
      line += text[i];
      continue;
    }
    while (i + 1 < text.size() && (text[i + 1] == ' ' || text[i + 1] == '\n')) ++i;
    if (i + 1 < text.size()) line += "; ";
  }
  return printable(line);
}

}  // namespace cohort::internal
