// SPDX-License-Identifier: Apache-2.0
// Splits a text file into lines.
#pragma once

#include "cohort/data/files/buffered_reader.h"
#include "cohort/data/files/file_scanner.h"

namespace cohort::data {

// Lines end in "\n" or "\r\n"; the last line may end at the end of the file, also after "\r", and
// is no line if it is empty (tf's InputBuffer::ReadLine). Used from one thread at a time.
class LineScanner final : public FileScanner {
 public:
  explicit LineScanner(BufferedReader reader) : reader_(std::move(reader)) {}

  bool next(std::string_view& line) override;
  std::uint64_t offset() const override { return reader_.offset(); }
  void seek(std::uint64_t offset) override { reader_.seek(offset); }

 private:
  BufferedReader reader_;
};

}  // namespace cohort::data
