// SPDX-License-Identifier: Apache-2.0
// Writing a file from front to back, packed or not.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "cohort/data/compression.h"

namespace cohort::data {

// Used from one thread at a time. Every call names the file where it fails.
class FileSink {
 public:
  virtual ~FileSink() = default;
  virtual void write(std::string_view bytes) = 0;
  // What was written so far can be read by others, also unpacked.
  virtual void flush() = 0;
  // The end of the file; nothing may be written after it.
  virtual void close() = 0;
};

std::unique_ptr<FileSink> create_file(const std::string& path, Compression compression,
                                      std::string_view op);

}  // namespace cohort::data
