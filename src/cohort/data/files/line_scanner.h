// SPDX-License-Identifier: Apache-2.0
// Splits a text file into lines.
#pragma once

#include "cohort/data/files/file_scanner.h"

namespace cohort::data {

// Lines end in "\n" or "\r\n"; the last line may end at the end of the file, also after "\r", and
// is no line if it is empty (tf's InputBuffer::ReadLine). Used from one thread at a time.
class LineScanner final : public FileScanner {
 public:
  using FileScanner::FileScanner;

  bool next(std::string_view& line) override;
};

}  // namespace cohort::data
