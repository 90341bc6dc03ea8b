// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/files/chunk_scanner.h"

#include <algorithm>
#include <limits>

#include "cohort/core/error.h"

namespace cohort::data {

std::uint64_t ChunkLayout::count(std::uint64_t file_bytes, const std::string& path,
                                 std::string_view op) const {
  const std::uint64_t around = header_bytes + footer_bytes;
  COHORT_CHECK(
      around >= header_bytes && file_bytes >= around && (file_bytes - around) % chunk_bytes == 0,
      ErrorCode::invalid_argument, "[data.", op, "] expected ", header_bytes, " bytes, records of ",
      chunk_bytes, " and ", footer_bytes, " bytes in file '", path, "', got ", file_bytes,
      " bytes, which these do not divide");
  return (file_bytes - around) / chunk_bytes;
}

void ChunkScanner::find_end() {
  const std::uint64_t position = reader_.offset();
  std::optional<std::uint64_t> size = reader_.size();
  if (!size) {
    reader_.skip(std::numeric_limits<std::uint64_t>::max());
    size = reader_.offset();
  }
  const std::uint64_t chunks = layout_.count(*size, path_, op_);
  end_ = layout_.header_bytes + chunks * layout_.chunk_bytes;
  reader_.seek(std::max(position, layout_.header_bytes));
}

bool ChunkScanner::next(std::string_view& chunk) {
  if (end_ == 0) find_end();
  if (reader_.offset() >= end_) {
    reader_.check_unchanged();
    return false;
  }
  const std::string_view bytes = reader_.peek(layout_.chunk_bytes);
  COHORT_CHECK(bytes.size() >= layout_.chunk_bytes, ErrorCode::data_loss, "[data.", op_,
               "] expected a record of ", layout_.chunk_bytes, " bytes at ", reader_.offset(),
               " in file '", path_, "', got ", bytes.size(), ": the file was shortened");
  chunk = bytes.substr(0, layout_.chunk_bytes);
  reader_.advance(layout_.chunk_bytes);
  return true;
}

}  // namespace cohort::data
