// SPDX-License-Identifier: Apache-2.0
// Splits a file into records, lines, chunks or CSV rows.
#pragma once

#include <cstdint>
#include <string_view>

namespace cohort::data {

// One open file. Used from one thread at a time.
class FileScanner {
 public:
  virtual ~FileScanner() = default;
  // The next value, valid until the next call; false at the end. If it throws, the rest of the file
  // is not read.
  virtual bool next(std::string_view& value) = 0;
  // The offset of the next value in the uncompressed file; seek() continues there.
  virtual std::uint64_t offset() const = 0;
  virtual void seek(std::uint64_t offset) = 0;
};

}  // namespace cohort::data
