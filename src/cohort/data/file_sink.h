// SPDX-License-Identifier: Apache-2.0
// Writes a file sequentially, compressed or not.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "cohort/data/dataset_options.h"

namespace cohort::data {

// Used from one thread at a time. Every error names the file.
class FileSink {
 public:
  virtual ~FileSink() = default;
  virtual void write(std::string_view bytes) = 0;
  // Makes the bytes written so far readable by others, also if compressed.
  virtual void flush() = 0;
  // Completes the file; nothing may be written after it.
  virtual void close() = 0;
};

std::unique_ptr<FileSink> create_file(const std::string& path, Compression compression,
                                      std::string_view op);

}  // namespace cohort::data
