// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/files/line_scanner.h"

namespace cohort::data {

bool LineScanner::next(std::string_view& line) {
  std::string_view seen = reader_.peek(1);
  if (seen.empty()) return false;
  std::size_t end = seen.find('\n');
  while (end == std::string_view::npos) {
    const std::size_t searched = seen.size();
    seen = reader_.peek(searched + 1);
    if (seen.size() == searched) {
      line = seen;
      if (line.ends_with('\r')) line.remove_suffix(1);
      reader_.advance(seen.size());
      return !line.empty();
    }
    end = seen.find('\n', searched);
  }
  line = seen.substr(0, end);
  if (line.ends_with('\r')) line.remove_suffix(1);
  reader_.advance(end + 1);
  return true;
}

}  // namespace cohort::data
