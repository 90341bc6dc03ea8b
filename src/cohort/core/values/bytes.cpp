// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/bytes.h"

#include <bit>
#include <cstring>

#include "cohort/core/error.h"

namespace cohort {

void ByteWriter::varint(std::uint64_t value) {
  while (value >= 0x80) {
    u8(static_cast<std::uint8_t>(value | 0x80));
    value >>= 7;
  }
  u8(static_cast<std::uint8_t>(value));
}

void ByteWriter::zigzag(std::int64_t value) {
  varint((static_cast<std::uint64_t>(value) << 1) ^ static_cast<std::uint64_t>(value >> 63));
}

void ByteWriter::u64(std::uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8) u8(static_cast<std::uint8_t>(value >> shift));
}

void ByteWriter::f64(double value) { u64(std::bit_cast<std::uint64_t>(value)); }

void ByteWriter::text(std::string_view value) {
  blob(std::as_bytes(std::span(value.data(), value.size())));
}

void ByteWriter::blob(std::span<const std::byte> value) {
  varint(value.size());
  bytes_.insert(bytes_.end(), value.begin(), value.end());
}

void ByteWriter::sizes(std::span<const std::int64_t> values) {
  varint(values.size());
  for (const std::int64_t value : values) zigzag(value);
}

void ByteReader::fail(std::string_view expected) const {
  internal::throw_error(ErrorCode::data_loss, "[core.bytes] broken ", what_, ": expected ",
                        expected, " at byte ", offset_, " of ", bytes_.size());
}

std::uint8_t ByteReader::u8() {
  if (remaining() < 1) fail("one more byte");
  return static_cast<std::uint8_t>(bytes_[offset_++]);
}

std::uint64_t ByteReader::varint() {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const std::uint8_t byte = u8();
    if (shift == 63 && byte > 1) fail("an integer of at most 64 bits");
    value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
    if ((byte & 0x80) == 0) return value;
  }
  fail("an integer of at most 10 bytes");
}

std::int64_t ByteReader::zigzag() {
  const std::uint64_t value = varint();
  return static_cast<std::int64_t>(value >> 1) ^ -static_cast<std::int64_t>(value & 1);
}

std::uint64_t ByteReader::u64() {
  if (remaining() < 8) fail("8 more bytes");
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 8) value |= static_cast<std::uint64_t>(u8()) << shift;
  return value;
}

double ByteReader::f64() { return std::bit_cast<double>(u64()); }

std::string ByteReader::text() {
  const std::span<const std::byte> value = blob();
  return std::string(reinterpret_cast<const char*>(value.data()), value.size());
}

std::span<const std::byte> ByteReader::blob() {
  const std::size_t size = count();
  const std::span<const std::byte> value = bytes_.subspan(offset_, size);
  offset_ += size;
  return value;
}

std::vector<std::int64_t> ByteReader::sizes() {
  std::vector<std::int64_t> values(count());
  for (std::int64_t& value : values) value = zigzag();
  return values;
}

std::size_t ByteReader::count(std::size_t bytes_each) {
  const std::uint64_t value = varint();
  if (value > remaining() / bytes_each) fail("a count that fits the bytes left");
  return static_cast<std::size_t>(value);
}

void ByteReader::expect_end() const {
  if (remaining() != 0) fail("the end");
}

}  // namespace cohort
