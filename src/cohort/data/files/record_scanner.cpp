// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/files/record_scanner.h"

#include <bit>
#include <cstring>

#include "cohort/core/error.h"

namespace cohort::data {
namespace {

static_assert(std::endian::native == std::endian::little, "record files are little-endian");

template <class T>
T load(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <class T>
void store(T value, char* to) {
  std::memcpy(to, &value, sizeof(T));
}

}  // namespace

bool decode_record_header(std::string_view header, std::uint64_t& length) {
  length = load<std::uint64_t>(header.data());
  return masked(crc32c(header.substr(0, 8))) == load<std::uint32_t>(header.data() + 8);
}

void encode_record_header(std::uint64_t length, char* header) {
  store(length, header);
  store(masked(crc32c({header, 8})), header + 8);
}

bool is_intact(std::string_view data_and_footer) {
  const std::size_t length = data_and_footer.size() - kRecordFooterBytes;
  return masked(crc32c(data_and_footer.substr(0, length))) ==
         load<std::uint32_t>(data_and_footer.data() + length);
}

void encode_record_footer(std::string_view data, char* footer) {
  store(masked(crc32c(data)), footer);
}

void fail_at_record(std::string_view kind, std::uint64_t offset, const std::string& path,
                    std::string_view op, std::string_view remedy) {
  internal::throw_error(
      ErrorCode::data_loss, "[data.", op, "] expected whole records with their checksums, got a ",
      kind, " record at ", offset, " in file '", path, "'",
      remedy.empty() ? "; the rest of the file is skipped; ignore_errors() hides this" : remedy);
}

bool RecordScanner::next_length(std::uint64_t& length) {
  const std::string_view header = reader_.peek(kRecordHeaderBytes);
  if (header.empty()) return false;
  const bool is_whole = header.size() >= kRecordHeaderBytes;
  if (!is_whole || !decode_record_header(header, length)) {
    fail_at_record(is_whole ? "corrupted" : "truncated", reader_.offset(), path_, op_,
                   reader_.offset() == 0 ? compression_remedy(header) : "");
  }
  return true;
}

bool RecordScanner::next(std::string_view& record) {
  constexpr std::size_t kAround = kRecordHeaderBytes + kRecordFooterBytes;
  std::uint64_t length = 0;
  if (!next_length(length)) return false;
  const bool can_be = length < (std::uint64_t{1} << 62);
  const std::string_view bytes = reader_.peek(can_be ? length + kAround : kRecordHeaderBytes);
  if (!can_be || bytes.size() < length + kAround) {
    fail_at_record("truncated", reader_.offset(), path_, op_);
  }
  if (!is_intact(bytes.substr(kRecordHeaderBytes, length + kRecordFooterBytes))) {
    fail_at_record("corrupted", reader_.offset() + kRecordHeaderBytes, path_, op_);
  }
  record = bytes.substr(kRecordHeaderBytes, length);
  reader_.advance(length + kAround);
  return true;
}

std::size_t RecordScanner::skip(std::size_t count) {
  std::uint64_t length = 0;
  for (std::size_t skipped = 0; skipped < count; ++skipped) {
    if (!next_length(length)) return skipped;
    const std::uint64_t start = reader_.offset();
    const std::uint64_t rest = length + kRecordFooterBytes;
    reader_.advance(kRecordHeaderBytes);
    if (rest < length || reader_.skip(rest) < rest) {
      reader_.seek(start);
      fail_at_record("truncated", start, path_, op_);
    }
  }
  return count;
}

}  // namespace cohort::data
