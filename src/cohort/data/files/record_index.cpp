// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <filesystem>
#include <string_view>

#include "cohort/core/error.h"
#include "cohort/data/file_sink.h"
#include "cohort/data/files/record_scanner.h"

namespace cohort::data {
namespace {

constexpr std::string_view kOp = "record_index";
constexpr std::string_view kMagic = "COHORTI1";
constexpr std::size_t kHeaderBytes = 24;  // magic, bytes of the file, number of records
constexpr std::int64_t kReadBufferBytes = 64 << 10;

std::string_view bytes_of(const void* data, std::size_t size) {
  return {static_cast<const char*>(data), size};
}

}  // namespace

std::string index_path(const std::string& path) { return path + ".index"; }

RecordIndex scan_record_index(const std::string& path) {
  RecordScanner scanner(BufferedReader(open_stream(path, Compression::none, kOp), kReadBufferBytes),
                        path, kOp);
  RecordIndex index;
  while (true) {
    const std::uint64_t offset = scanner.offset();
    if (scanner.skip(1) == 0) {
      index.file_bytes = offset;
      return index;
    }
    index.offsets.push_back(offset);
  }
}

void save_record_index(const RecordIndex& index, const std::string& path) {
  const std::uint64_t count = index.offsets.size();
  std::string bytes(kMagic);
  bytes += bytes_of(&index.file_bytes, sizeof(index.file_bytes));
  bytes += bytes_of(&count, sizeof(count));
  bytes += bytes_of(index.offsets.data(), count * sizeof(std::uint64_t));
  const std::uint32_t checksum = masked(crc32c(bytes));
  bytes += bytes_of(&checksum, sizeof(checksum));
  // Writes another file and renames it, so that readers see the old index or the new one.
  const std::string unfinished = path + ".new";
  const std::unique_ptr<FileSink> file = create_file(unfinished, Compression::none, kOp);
  file->write(bytes);
  file->close();
  std::error_code error;
  std::filesystem::rename(unfinished, path, error);
  if (!error) return;
  std::error_code ignored;
  std::filesystem::remove(unfinished, ignored);
  internal::throw_error(ErrorCode::failed_precondition, "[data.record_index] expected to write '",
                        path, "', got: ", error.message(), "; move away what has its name");
}

std::optional<RecordIndex> load_record_index(const std::string& path, std::uint64_t file_bytes) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return std::nullopt;
  const RegularFile file = RegularFile::open(path, kOp);
  std::string bytes(file.size(), '\0');
  bytes.resize(file.read_at(0, bytes));
  RecordIndex index;
  std::uint64_t count = 0;
  const auto check = [&](bool is_good) {
    COHORT_CHECK(is_good, ErrorCode::data_loss, "[data.record_index] expected a record index in '",
                 path, "', got ", bytes.size(),
                 " other bytes; remove the file, or write it again with write_record_index()");
  };
  check(bytes.size() >= kHeaderBytes + sizeof(std::uint32_t) && bytes.starts_with(kMagic));
  std::memcpy(&index.file_bytes, bytes.data() + 8, 8);
  std::memcpy(&count, bytes.data() + 16, 8);
  check(count == (bytes.size() - kHeaderBytes - 4) / 8 && bytes.size() % 8 == 4 &&
        is_intact(bytes));
  if (index.file_bytes != file_bytes) return std::nullopt;
  index.offsets.resize(count);
  if (count > 0) std::memcpy(index.offsets.data(), bytes.data() + kHeaderBytes, count * 8);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t end = i + 1 < count ? index.offsets[i + 1] : file_bytes;
    constexpr std::uint64_t kRecordBytesMin = kRecordHeaderBytes + kRecordFooterBytes;
    check(end <= file_bytes && end >= kRecordBytesMin && index.offsets[i] <= end - kRecordBytesMin);
  }
  return index;
}

}  // namespace cohort::data
