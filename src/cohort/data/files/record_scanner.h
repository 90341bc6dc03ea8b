// SPDX-License-Identifier: Apache-2.0
// Reads the records of a TFRecord file and verifies their checksums; reads and writes its index.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/crc32c.h"
#include "cohort/data/files/file_scanner.h"

namespace cohort::data {

inline constexpr std::size_t kRecordHeaderBytes = 12;  // length, its checksum
inline constexpr std::size_t kRecordFooterBytes = 4;   // the data's checksum

// The CRC of bytes that contain CRCs is weak. So files store masked CRCs.
constexpr std::uint32_t masked(std::uint32_t crc) {
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
}

// Reads the length of a record's data from its header. False if the header's checksum is wrong.
bool decode_record_header(std::string_view header, std::uint64_t& length);
void encode_record_header(std::uint64_t length, char* header);
// Whether the checksum after the data is right.
bool is_intact(std::string_view data_and_footer);
void encode_record_footer(std::string_view data, char* footer);

// Throws data_loss for a "corrupted" or "truncated" record at `offset`. `remedy` may be empty.
[[noreturn]] void fail_at_record(std::string_view kind, std::uint64_t offset,
                                 const std::string& path, std::string_view op,
                                 std::string_view remedy = "");

// A call that throws does not move the position. Used from one thread at a time.
class RecordScanner final : public FileScanner {
 public:
  RecordScanner(BufferedReader reader, std::string path, std::string_view op)
      : FileScanner(std::move(reader)), path_(std::move(path)), op_(op) {}

  bool next(std::string_view& record) override;
  // Skips records, reading only their headers. Returns how many, fewer than `count` only at the
  // end.
  std::size_t skip(std::size_t count);

 private:
  // The length of the next record's data. Returns false at the end.
  bool next_length(std::uint64_t& length);

  std::string path_;
  std::string op_;
};

// The index of a record file: the offsets of its records (docs/formats/record.md).
struct RecordIndex {
  std::uint64_t file_bytes = 0;        // of the file it was made for
  std::vector<std::uint64_t> offsets;  // ascending
};

// Reads the headers of all records; data_loss if one is damaged.
RecordIndex scan_record_index(const std::string& path);
std::string index_path(const std::string& path);
void save_record_index(const RecordIndex& index, const std::string& path);
// nullopt if there is no index, or it is for a file of another size; data_loss if it is damaged.
std::optional<RecordIndex> load_record_index(const std::string& path, std::uint64_t file_bytes);

}  // namespace cohort::data
