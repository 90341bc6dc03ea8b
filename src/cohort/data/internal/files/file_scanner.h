// SPDX-License-Identifier: Apache-2.0
// What a file is cut into: records, lines, chunks, rows.
#pragma once

#include <cstdint>
#include <string_view>

namespace cohort::data {

// One open file. Used from one thread at a time.
class FileScanner {
 public:
  virtual ~FileScanner() = default;
  // The next value, valid until the next call; false at the end. What it throws is the end of this
  // file as well.
  virtual bool next(std::string_view& value) = 0;
  // Of the next value in the unpacked file; taking it up again.
  virtual std::uint64_t offset() const = 0;
  virtual void seek(std::uint64_t offset) = 0;
};

}  // namespace cohort::data
