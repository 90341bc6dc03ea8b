// SPDX-License-Identifier: Apache-2.0
// A buffered view of a stream. Bytes are parsed in the buffer, without copying most of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "cohort/data/files/file_stream.h"

namespace cohort::data {

// Used from one thread at a time.
class BufferedReader {
 public:
  // buffer_bytes is clamped to 4 KiB … 64 MiB. The buffer grows for a longer value.
  BufferedReader(std::unique_ptr<FileStream> stream, std::int64_t buffer_bytes);

  // The next bytes: at least `count`, fewer only at the end of the file. Valid until the next call.
  std::string_view peek(std::size_t count) {
    if (static_cast<std::size_t>(end_ - begin_) < count) fill(count);
    return {begin_, static_cast<std::size_t>(end_ - begin_)};
  }
  // Skips bytes that peek() returned.
  void advance(std::size_t count) { begin_ += count; }
  // Skips any number of bytes. Returns how many, fewer than `count` only at the end.
  std::uint64_t skip(std::uint64_t count);
  // The offset of the next byte in the uncompressed file.
  std::uint64_t offset() const { return end_offset_ - static_cast<std::uint64_t>(end_ - begin_); }
  void seek(std::uint64_t offset);
  std::optional<std::uint64_t> size() const { return stream_->size(); }
  void check_unchanged() const { stream_->check_unchanged(); }
  // invalid_argument, naming the option, if the file, which is read without a compression, begins
  // as a compressed one. For readers of text, in which every byte is allowed.
  void check_is_text(const std::string& path, std::string_view op);
  // How many bytes were moved within the buffer so far, for tests of the costs.
  std::uint64_t moved_bytes() const { return moved_bytes_; }

 private:
  struct Free {
    void operator()(char* buffer) const;
  };
  using Buffer = std::unique_ptr<char[], Free>;

  void fill(std::size_t count);
  void make_room(std::size_t count);

  std::unique_ptr<FileStream> stream_;
  std::size_t capacity_;  // whole pages; the buffer has one page more
  Buffer buffer_;
  const char* front_ = nullptr;  // begin of the buffered bytes, including skipped ones
  const char* begin_ = nullptr;
  const char* end_ = nullptr;
  std::uint64_t end_offset_ = 0;
  std::uint64_t moved_bytes_ = 0;
};

}  // namespace cohort::data
