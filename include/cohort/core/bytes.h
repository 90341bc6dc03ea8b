// SPDX-License-Identifier: Apache-2.0
// Little-endian byte strings with LEB128 integers: the encoding of all our formats. The reader
// checks each length against the remaining bytes, and throws data_loss with the offset if the bytes
// are broken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/export.h"

namespace cohort {

using Bytes = std::vector<std::byte>;

// Thread-compatible.
class COHORT_API ByteWriter {
 public:
  void u8(std::uint8_t value) { bytes_.push_back(std::byte{value}); }
  void varint(std::uint64_t value);
  void zigzag(std::int64_t value);
  void u64(std::uint64_t value);  // 8 bytes, for values that are usually large
  void f64(double value);
  void text(std::string_view value);                 // length, bytes
  void blob(std::span<const std::byte> value);       // length, bytes
  void sizes(std::span<const std::int64_t> values);  // count, zigzags
  Bytes take() { return std::move(bytes_); }
  const Bytes& bytes() const { return bytes_; }

 private:
  Bytes bytes_;
};

// Thread-compatible. `what` names the format in errors, for example "push message".
class COHORT_API ByteReader {
 public:
  ByteReader(std::span<const std::byte> bytes, std::string_view what)
      : bytes_(bytes), what_(what) {}
  std::uint8_t u8();
  std::uint64_t varint();
  std::int64_t zigzag();
  std::uint64_t u64();
  double f64();
  std::string text();
  std::span<const std::byte> blob();
  std::vector<std::int64_t> sizes();
  // The number of items that follow, each of at least `bytes_each` bytes.
  std::size_t count(std::size_t bytes_each = 1);
  std::size_t remaining() const { return bytes_.size() - offset_; }
  // Throws data_loss unless all bytes were read.
  void expect_end() const;
  [[noreturn]] void fail(std::string_view expected) const;

 private:
  std::span<const std::byte> bytes_;
  std::size_t offset_ = 0;
  std::string what_;
};

}  // namespace cohort
