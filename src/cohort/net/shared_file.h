// SPDX-License-Identifier: Apache-2.0
// Memory that processes of one host share: a file without a name, which is gone when the last of
// them has ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "cohort/core/file_descriptor.h"

namespace cohort::net {

// A part of a file in this process's memory. Thread-compatible.
class Mapping {
 public:
  Mapping() = default;
  Mapping(void* data, std::size_t bytes) : data_(static_cast<std::byte*>(data)), bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// `otherwise` is a literal: what a user can choose where processes cannot share memory, for
// messages. Thread-safe.
class SharedFile {
 public:
  SharedFile() = default;
  // A new one of zeros, whose size stays as it is. It takes no memory before it is reserved.
  static SharedFile create(std::uint64_t bytes, const char* otherwise);
  // The one that another process holds. Throws failed_precondition if it is another file, or this
  // process may not open it.
  static SharedFile open(std::int64_t process, int descriptor, std::uint64_t bytes,
                         const char* otherwise);

  int descriptor() const { return file_.get(); }
  // Takes the memory of a range now. Without that, a lack of memory would end the process that
  // writes there.
  void reserve(std::uint64_t offset, std::uint64_t bytes) const;
  // Gives the memory back; the range reads as zeros.
  void clear(std::uint64_t offset, std::uint64_t bytes) const noexcept;
  Mapping map(std::uint64_t offset, std::uint64_t bytes) const;

 private:
  SharedFile(int file, const char* otherwise) : file_(file), otherwise_(otherwise) {}
  void check(bool is_good, std::string_view act, std::uint64_t bytes) const;

  FileDescriptor file_;
  const char* otherwise_ = "";
};

// The size that ranges of the file are multiples of.
std::uint64_t page_bytes();

}  // namespace cohort::net
