// SPDX-License-Identifier: Apache-2.0
// Record files, uncompressed and compressed: read in order, by offset, and skipped.
#include <zlib.h>

#include <cstring>
#include <optional>
#include <vector>

#include "cohort/data/record_io.h"
#include "tests/fuzz/target.h"

namespace cohort::fuzz {
namespace {

// Writes right checksums into complete records, since mutations would never produce them.
std::string with_checksums(std::string bytes) {
  for (std::size_t at = 0; at + 16 <= bytes.size();) {
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data() + at, 8);
    const std::uint32_t header = masked_crc32c({bytes.data() + at, 8});
    std::memcpy(bytes.data() + at + 8, &header, 4);
    if (length > bytes.size() - at - 16) break;
    const std::uint32_t footer = masked_crc32c({bytes.data() + at + 12, length});
    std::memcpy(bytes.data() + at + 12 + length, &footer, 4);
    at += 16 + length;
  }
  return bytes;
}

std::string packed(std::string_view bytes, Compression compression) {
  z_stream zlib{};
  const int window_bits = MAX_WBITS + (compression == Compression::gzip ? 16 : 0);
  require(::deflateInit2(&zlib, 1, Z_DEFLATED, window_bits, 8, Z_DEFAULT_STRATEGY) == Z_OK, "zlib");
  std::string out(::deflateBound(&zlib, bytes.size()), '\0');
  zlib.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  zlib.avail_in = static_cast<uInt>(bytes.size());
  zlib.next_out = reinterpret_cast<Bytef*>(out.data());
  zlib.avail_out = static_cast<uInt>(out.size());
  require(::deflate(&zlib, Z_FINISH) == Z_STREAM_END, "zlib");
  out.resize(zlib.total_out);
  ::deflateEnd(&zlib);
  return out;
}

struct Record {
  std::uint64_t offset = 0;
  std::string data;
};

// The records up to the end or the first invalid record.
std::vector<Record> read_in_order(RecordReader& reader, std::size_t count_max) {
  std::vector<Record> records;
  only_fails_with({ErrorCode::data_loss}, [&] {
    while (true) {
      const std::uint64_t offset = reader.offset();
      const auto record = reader.try_next();
      if (!record) break;
      require(reader.offset() == offset + record->size() + 16, "an offset does not fit");
      records.push_back({offset, std::string(*record)});
      require(records.size() <= count_max, "more records than bytes");
    }
  });
  return records;
}

void check_records(const std::string& path, const RecordReaderOptions& options) {
  constexpr std::size_t kUnpackedMax = 64 << 20;  // uncompressed size of the largest input
  RecordReader reader(path, options);
  const std::vector<Record> records = read_in_order(reader, kUnpackedMax / 16);
  for (auto record = records.rbegin(); record != records.rend(); ++record) {
    require(reader.read_at(record->offset) == record->data, "a record by offset differs");
  }
  reader.seek(0);
  only_fails_with({ErrorCode::data_loss}, [&] {
    require(reader.skip(records.size()) == records.size(), "passing over missed records");
  });
}

// record_offsets() reads only headers, so it may list records that cannot be read.
void check_offsets(const std::string& path) {
  only_fails_with({ErrorCode::data_loss}, [&] {
    RecordReader reader(path);
    for (const std::uint64_t offset : record_offsets(path)) {
      only_fails_with({ErrorCode::data_loss}, [&] { reader.read_at(offset); });
    }
  });
}

void run(Input input) {
  static const ScratchFile file("records");
  const std::uint8_t choice = input.byte();
  const auto compression = static_cast<Compression>(choice % 3);
  const bool is_repaired = (choice & 0x40) != 0;
  const bool is_packed = (choice & 0x80) != 0;
  std::string bytes(input.rest());
  if (is_repaired) bytes = with_checksums(std::move(bytes));
  if (is_packed && compression != Compression::none) bytes = packed(bytes, compression);
  file.write(bytes);
  check_records(file.path(), {.compression = compression, .buffer_bytes = 1});
  if (compression == Compression::none) check_offsets(file.path());
}

}  // namespace
}  // namespace cohort::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cohort::fuzz::run({data, size});
  return 0;
}
