// SPDX-License-Identifier: Apache-2.0
// Splits a file into records, lines, chunks or CSV rows.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/data/files/buffered_reader.h"

namespace cohort::data {

// Some programs write it at the start of a text in UTF-8. It is not part of the text.
inline constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// One open file. Used from one thread at a time.
class FileScanner {
 public:
  explicit FileScanner(BufferedReader reader) : reader_(std::move(reader)) {}
  virtual ~FileScanner() = default;
  FileScanner(const FileScanner&) = delete;
  FileScanner& operator=(const FileScanner&) = delete;

  // The next value, which is valid until the next call. Returns false at the end. If it throws, the
  // rest of the file is not read, unless goes_on().
  virtual bool next(std::string_view& value) = 0;
  // Whether the error that next() threw last replaces one value alone, which more may follow.
  virtual bool goes_on() const { return false; }
  // The offset of the next value in the uncompressed file; seek() continues there.
  std::uint64_t offset() const { return reader_.offset(); }
  virtual void seek(std::uint64_t offset) { reader_.seek(offset); }
  // Adds the place of the last value in the file `path` to an error about that value.
  virtual Error located(const Error& error, const std::string& path) {
    return Error(error).during("reading '" + path + "' before byte " + std::to_string(offset()));
  }

 protected:
  BufferedReader reader_;
};

}  // namespace cohort::data
