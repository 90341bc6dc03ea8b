// SPDX-License-Identifier: Apache-2.0
// Reads chunks of equal length between a header and a footer of a file.
#pragma once

#include <string>
#include <string_view>

#include "cohort/data/files/file_scanner.h"

namespace cohort::data {

struct ChunkLayout {
  std::uint64_t header_bytes = 0;
  std::uint64_t chunk_bytes = 0;
  std::uint64_t footer_bytes = 0;

  // The number of chunks in a file of this size; invalid_argument if whole chunks do not fill it.
  std::uint64_t count(std::uint64_t file_bytes, const std::string& path, std::string_view op) const;
};

// Finds the file's size before it reads the first chunk; for this, it decompresses a compressed
// file an extra time. Used from one thread at a time.
class ChunkScanner final : public FileScanner {
 public:
  ChunkScanner(BufferedReader reader, ChunkLayout layout, std::string path, std::string_view op)
      : FileScanner(std::move(reader)), layout_(layout), path_(std::move(path)), op_(op) {}

  bool next(std::string_view& chunk) override;

 private:
  void find_end();

  ChunkLayout layout_;
  std::string path_;
  std::string op_;
  std::uint64_t end_ = 0;  // end of the last chunk; 0: not known yet
};

}  // namespace cohort::data
