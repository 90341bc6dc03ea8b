// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/files/idx_file.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <optional>
#include <span>

#include "cohort/core/error.h"
#include "cohort/data/graph/nest_codec.h"

namespace cohort::data {
namespace {

constexpr std::size_t kMagicBytes = 4;
constexpr std::size_t kDimensionsMax = 8;
constexpr std::string_view kFetchAgain = "; fetch or copy it again";
static_assert(std::endian::native == std::endian::little);

std::optional<at::ScalarType> dtype_of(unsigned code) {
  static const std::map<unsigned, at::ScalarType> kDtypes{
      {0x08, at::ScalarType::Byte}, {0x09, at::ScalarType::Char},  {0x0b, at::ScalarType::Short},
      {0x0c, at::ScalarType::Int},  {0x0d, at::ScalarType::Float}, {0x0e, at::ScalarType::Double}};
  const auto found = kDtypes.find(code);
  return found == kDtypes.end() ? std::nullopt : std::optional(found->second);
}

std::string hexadecimal(std::span<const std::byte> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[static_cast<unsigned>(byte) >> 4];
    text += kDigits[static_cast<unsigned>(byte) & 15];
  }
  return text;
}

std::int64_t big_endian(std::span<const std::byte> bytes) {
  std::int64_t value = 0;
  for (const std::byte byte : bytes.first(4)) value = value << 8 | static_cast<std::int64_t>(byte);
  return value;
}

void check_magic(const std::string& path, std::span<const std::byte> bytes) {
  COHORT_CHECK(bytes.size() >= kMagicBytes, ErrorCode::data_loss,
               "[data.idx] expected an IDX header of at least 4 bytes in '", path, "', got ",
               bytes.size(), " bytes: the file is truncated", kFetchAgain);
  const unsigned dimensions = static_cast<unsigned>(bytes[3]);
  const bool is_compressed = bytes[0] == std::byte{0x1f} && bytes[1] == std::byte{0x8b};
  COHORT_CHECK(
      bytes[0] == std::byte{0} && bytes[1] == std::byte{0} &&
          dtype_of(static_cast<unsigned>(bytes[2])) && dimensions >= 1 &&
          dimensions <= kDimensionsMax,
      ErrorCode::data_loss,
      "[data.idx] expected the magic 0000TTDD of an IDX file (TT: 08 to 0e, DD: 01 to 08) in '",
      path, "', got ", hexadecimal(bytes.first(kMagicBytes)),
      is_compressed ? "; it is gzip-compressed: unpack it first"
                    : "; give the path of an IDX file, as MNIST has them");
}

void swap_values(std::span<std::byte> values, std::size_t width) {
  for (std::size_t i = 0; i < values.size(); i += width) {
    std::reverse(values.data() + i, values.data() + i + width);
  }
}

}  // namespace

IdxFile IdxFile::open(const std::string& path) {
  IdxFile file{.path = path,
               .all = {},
               .header_bytes = 0,
               .content = std::make_shared<const RegularFile>(RegularFile::open(path, "idx"))};
  std::array<char, kMagicBytes + 4 * kDimensionsMax> front;
  const std::size_t front_bytes = file.content->read_at(0, front);
  const auto bytes = std::as_bytes(std::span(front)).first(front_bytes);
  const std::size_t size = file.content->size();
  check_magic(path, bytes);
  const auto dimensions = static_cast<std::size_t>(bytes[3]);
  file.header_bytes = kMagicBytes + 4 * dimensions;
  COHORT_CHECK(bytes.size() >= file.header_bytes, ErrorCode::data_loss,
               "[data.idx] expected a header of ", file.header_bytes, " bytes in '", path,
               "', got ", bytes.size(), ": the file is truncated", kFetchAgain);
  file.all = {*dtype_of(static_cast<unsigned>(bytes[2])), std::vector<std::int64_t>()};
  for (std::size_t i = 0; i < dimensions; ++i) {
    file.all.sizes->push_back(big_endian(bytes.subspan(kMagicBytes + 4 * i)));
  }
  const std::size_t available = size - file.header_bytes;
  const auto expected = value_bytes(file.all.dtype, *file.all.sizes, available);
  COHORT_CHECK(expected == available, ErrorCode::data_loss, "[data.idx] expected the values of ",
               file.all.to_string(), " after the header of '", path, "', got ", available,
               " bytes: the file is ", expected ? "too long" : "truncated", " at byte ", size,
               kFetchAgain);
  return file;
}

// Reads the file instead of mapping it: if a mapped file is shortened, the next access kills the
// process (SIGBUS).
Column IdxFile::column() const {
  const std::size_t size = content->size() - header_bytes;
  const std::shared_ptr<char[]> values(new char[size]);
  const std::span<char> bytes(values.get(), size);
  content->read_at(header_bytes, bytes);
  const std::size_t width = c10::elementSize(all.dtype);
  if (width > 1) swap_values(std::as_writable_bytes(bytes), width);
  return {.row = {all.dtype, std::vector(all.sizes->begin() + 1, all.sizes->end())},
          .data = std::as_bytes(bytes).data(),
          .owner = values};
}

}  // namespace cohort::data
