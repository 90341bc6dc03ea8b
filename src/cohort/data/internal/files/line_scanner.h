// SPDX-License-Identifier: Apache-2.0
// Splits a text file into lines.
#pragma once

#include "cohort/data/internal/files/byte_window.h"
#include "cohort/data/internal/files/file_scanner.h"

namespace cohort::data {

// Lines end in "\n" or "\r\n"; the last line may end at the end of the file, also after "\r", and
// is no line if it is empty (tf's InputBuffer::ReadLine). Used from one thread at a time.
class LineScanner final : public FileScanner {
 public:
  explicit LineScanner(ByteWindow window) : window_(std::move(window)) {}

  bool next(std::string_view& line) override;
  std::uint64_t offset() const override { return window_.offset(); }
  void seek(std::uint64_t offset) override { window_.seek(offset); }

 private:
  ByteWindow window_;
};

}  // namespace cohort::data
