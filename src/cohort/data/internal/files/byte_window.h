// SPDX-License-Identifier: Apache-2.0
// Looking at a stream through a buffer: what is read is not copied, but for the ends of a fill.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "cohort/data/internal/files/file_stream.h"

namespace cohort::data {

// Used from one thread at a time.
class ByteWindow {
 public:
  // Of 4 KiB to 64 MiB, whatever is asked for; it grows for a value that is longer.
  ByteWindow(std::unique_ptr<FileStream> stream, std::int64_t buffer_bytes);

  // The bytes from here on: at least `count`, fewer only where the file ends. Valid until the next
  // call.
  std::string_view peek(std::size_t count) {
    if (static_cast<std::size_t>(end_ - begin_) < count) fill(count);
    return {begin_, static_cast<std::size_t>(end_ - begin_)};
  }
  // Passes over bytes that were peeked at.
  void advance(std::size_t count) { begin_ += count; }
  // Passes over any number of bytes; how many there were.
  std::uint64_t skip(std::uint64_t count);
  // Of the next byte in the unpacked file.
  std::uint64_t offset() const { return end_offset_ - static_cast<std::uint64_t>(end_ - begin_); }
  void seek(std::uint64_t offset);
  std::optional<std::uint64_t> size() const { return stream_->size(); }

 private:
  struct Free {
    void operator()(char* buffer) const;
  };
  using Buffer = std::unique_ptr<char[], Free>;

  void fill(std::size_t count);
  void make_room(std::size_t count);

  std::unique_ptr<FileStream> stream_;
  std::size_t capacity_;  // whole pages; the buffer has one more
  Buffer buffer_;
  const char* front_ = nullptr;  // of what is in the buffer, passed over or not
  const char* begin_ = nullptr;
  const char* end_ = nullptr;
  std::uint64_t end_offset_ = 0;
};

}  // namespace cohort::data
