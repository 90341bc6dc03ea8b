// SPDX-License-Identifier: Apache-2.0
// Reads a file sequentially and decompresses it. Does not use LibTorch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "cohort/core/file_descriptor.h"
#include "cohort/data/dataset_options.h"

namespace cohort::data {

// A regular file that is open for reading. Used only from its owner.
class RegularFile {
 public:
  // Throws not_found, permission_denied and the like, or invalid_argument if it is not a regular
  // file. `op` is for messages.
  static RegularFile open(const std::string& path, std::string_view op);
  std::uint64_t size() const { return size_; }  // when it was opened
  const std::string& path() const { return path_; }
  const std::string& op() const { return op_; }
  // Reads up to buffer.size() bytes at `offset`, fewer only at the end. Throws data_loss if the
  // disk fails or the file was shortened since it was opened. A read at the end calls
  // check_unchanged().
  std::size_t read_at(std::uint64_t offset, std::span<char> buffer) const;
  // Throws data_loss if the size or the modification time of the file has changed since it was
  // opened (docs/decisions/0044-files-that-change-under-their-reader.md). A reader calls it after
  // it has read all that it needs.
  void check_unchanged() const;

 private:
  RegularFile(FileDescriptor file, std::string path, std::string_view op)
      : file_(std::move(file)), path_(std::move(path)), op_(op) {}
  // Reads up to buffer.size() bytes, fewer only at the current end of the file.
  std::size_t read_now(std::uint64_t offset, std::span<char> buffer) const;
  [[noreturn]] void fail_changed(const std::string& got) const;

  FileDescriptor file_;
  std::uint64_t size_ = 0;
  std::int64_t modified_ns_ = 0;  // when it was opened
  std::string path_;
  std::string op_;
};

// Used from one thread at a time.
class FileStream {
 public:
  virtual ~FileStream() = default;
  // Reads up to buffer.size() bytes and returns how many, 0 only at the end. data_loss, naming the
  // file's byte, if it cannot be decompressed.
  virtual std::size_t read(std::span<char> buffer) = 0;
  // Continues at this byte of the uncompressed file; at or after its end, read() returns 0.
  virtual void seek(std::uint64_t offset) = 0;
  // The size of the uncompressed file; nullopt if unknown without reading it.
  virtual std::optional<std::uint64_t> size() const = 0;
  // RegularFile::check_unchanged(), for a reader that does not read up to the end.
  virtual void check_unchanged() const = 0;
};

// Every error names path and op.
std::unique_ptr<FileStream> open_stream(const std::string& path, Compression compression,
                                        std::string_view op);
// The compression that the first bytes of a file tell; none for any other bytes.
Compression compression_in(std::string_view first_bytes);
// For messages about a file that was read without a compression: "" if its first bytes tell none.
std::string compression_remedy(std::string_view first_bytes);

}  // namespace cohort::data
