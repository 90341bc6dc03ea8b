// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <random>

#include "cohort/core/error.h"
#include "cohort/data/files/file_fixture.h"
#include "cohort/data/files/record_scanner.h"
#include "cohort/data/graph/dataset_op_suite.h"
#include "cohort/data/record_io.h"

namespace cohort::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RecordIo : public ::testing::Test {
 protected:
  std::string hex_of(const std::vector<std::string>& records) const {
    return to_hex(bytes_of_file(directory_.write_records("w", records)));
  }
  static std::vector<std::string> read(RecordReader& reader) {
    std::vector<std::string> records;
    while (const auto record = reader.try_next()) records.emplace_back(*record);
    return records;
  }
  std::vector<std::string> read_back(const std::vector<std::string>& records,
                                     Compression compression) const {
    RecordReader reader(directory_.write_records("r", records, compression),
                        {.compression = compression});
    return read(reader);
  }
  Error error_in(const std::string& hex) const {
    const std::string path = directory_.write("bad", from_hex(hex));
    return error_of([&] {
      RecordReader reader(path);
      read(reader);
    });
  }

  ScratchDirectory directory_;
};

TEST(MaskedCrc, IsThatOfRecordFiles) { EXPECT_EQ(masked(crc32c("a")), 0x28e46e78U); }

TEST_F(RecordIo, WritesTheBytesOfTheFormat) {
  EXPECT_EQ(hex_of({""}), "000000000000000029039807d8ea82a2");
  EXPECT_EQ(hex_of({"foo"}), "0300000000000000b099490e666f6f618abefe");
  EXPECT_EQ(hex_of({"Record 0 of file 0"}),
            "1200000000000000241f64255265636f72642030206f662066696c6520306c978ce2");
  EXPECT_EQ(hex_of({}), "");
}

TEST_F(RecordIo, ReadsWhatItWrote) {
  const std::vector<std::string> records{"a", "", std::string(1 << 20, 'x'),
                                         std::string("\0\n", 2)};
  EXPECT_EQ(read_back(records, Compression::none), records);
  EXPECT_EQ(read_back(records, Compression::zlib), records);
  EXPECT_EQ(read_back(records, Compression::gzip), records);
  EXPECT_EQ(read_back({}, Compression::gzip), std::vector<std::string>{});
}

TEST_F(RecordIo, ReadsRecordsAcrossBufferBorders) {
  std::vector<std::string> records;
  for (std::size_t i = 0; i < 300; ++i) records.emplace_back(i * 31 % 977, static_cast<char>(i));
  RecordReader reader(directory_.write_records("r", records), {.buffer_bytes = 1});
  EXPECT_EQ(read(reader), records);
}

TEST_F(RecordIo, NamesACorruptRecord) {
  const Error header = error_in("0300000000000000b099ad0e666f6f618abefe");
  EXPECT_EQ(header.code(), ErrorCode::data_loss);
  EXPECT_THAT(header.message(),
              AllOf(HasSubstr("corrupted record at 0 "), HasSubstr(directory_.file("bad"))));
  EXPECT_THAT(error_in("0300000000000000b099490e666f79618abefe").message(),
              HasSubstr("corrupted record at 12 "));
  EXPECT_THAT(error_in("0300000000000000b099490e666f6f618abe08").message(),
              HasSubstr("corrupted record at 12 "));
}

TEST_F(RecordIo, NamesATruncatedRecord) {
  const std::string whole = "0300000000000000b099490e666f6f618abefe";
  for (std::size_t bytes = 1; bytes < whole.size() / 2; ++bytes) {
    const Error error = error_in(whole.substr(0, 2 * bytes));
    EXPECT_EQ(error.code(), ErrorCode::data_loss) << bytes;
    EXPECT_THAT(error.message(), HasSubstr("truncated record at 0 ")) << bytes;
  }
  EXPECT_THAT(error_in(whole + whole.substr(0, 20)).message(),
              HasSubstr("truncated record at 19 "));
}

TEST_F(RecordIo, AllocatesNothingForALengthThatIsNotThere) {
  char header[12];
  for (const std::uint64_t length : {std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    // A complete header with a valid checksum, and no data.
    std::memcpy(header, &length, 8);
    const std::uint32_t crc = masked(crc32c({header, 8}));
    std::memcpy(header + 8, &crc, 4);
    EXPECT_THAT(error_in(to_hex({header, 12})).message(), HasSubstr("truncated record at 0 "));
  }
}

TEST_F(RecordIo, StaysWhereAReadFailed) {
  RecordReader reader(directory_.write("bad", from_hex("0300000000000000b099490e666f79618abefe")));
  EXPECT_EQ(error_of([&] { reader.try_next(); }).code(), ErrorCode::data_loss);
  EXPECT_EQ(reader.offset(), 0U);
  EXPECT_EQ(error_of([&] { reader.try_next(); }).code(), ErrorCode::data_loss);
  EXPECT_EQ(reader.skip(2), 1U);
  EXPECT_EQ(reader.try_next(), std::nullopt);
}

TEST_F(RecordIo, ReadsAtOffsetsInAnyOrder) {
  for (const Compression compression : {Compression::none, Compression::zlib}) {
    RecordReader reader(directory_.write_records("r", {"first", "", "third"}, compression),
                        {.compression = compression});
    EXPECT_EQ(reader.read_at(37), "third");
    EXPECT_EQ(reader.offset(), 58U);
    EXPECT_EQ(reader.read_at(0), "first");
    EXPECT_EQ(reader.try_next(), "");
    EXPECT_EQ(error_of([&] { reader.read_at(58); }).code(), ErrorCode::out_of_range);
  }
}

TEST_F(RecordIo, SkipsRecords) {
  RecordReader reader(directory_.write_records("r", {"a", "b", std::string(9000, 'c'), "d"}),
                      {.buffer_bytes = 4096});
  EXPECT_EQ(reader.skip(3), 3U);
  EXPECT_EQ(reader.try_next(), "d");
  EXPECT_EQ(reader.skip(5), 0U);
}

TEST_F(RecordIo, RefusesToWriteWhenClosed) {
  RecordWriter writer(directory_.file("w"));
  writer.write("x");
  writer.close();
  writer.close();
  EXPECT_EQ(error_of([&] { writer.write("y"); }).code(), ErrorCode::failed_precondition);
  EXPECT_EQ(error_of([&] { writer.flush(); }).code(), ErrorCode::failed_precondition);
}

// The rest of a failed write was once written again by the next write.
TEST_F(RecordIo, WritesNothingBehindAFailedWrite) {
  std::mt19937 random(1);
  std::string record(1 << 20, '\0');  // compresses badly
  for (char& c : record) c = static_cast<char>(random());
  for (const Compression compression : {Compression::none, Compression::zlib}) {
    RecordWriter writer("/dev/full", compression);
    EXPECT_EQ(error_of([&] { writer.write(record); }).code(), ErrorCode::resource_exhausted);
    EXPECT_EQ(error_of([&] { writer.write("x"), writer.flush(); }).code(),
              ErrorCode::failed_precondition);
    EXPECT_THAT(error_of([&] { writer.close(); }).message(), HasSubstr("/dev/full"));
  }
}

TEST_F(RecordIo, ShowsOthersWhatWasFlushed) {
  for (const Compression compression : {Compression::none, Compression::gzip}) {
    RecordWriter writer(directory_.file("w"), compression);
    writer.write("x");
    writer.flush();
    RecordReader reader(directory_.file("w"), {.compression = compression});
    EXPECT_EQ(reader.try_next(), "x");
  }
}

TEST_F(RecordIo, NamesAFileThatCannotBeOpened) {
  EXPECT_EQ(error_of([&] { RecordReader(directory_.file("none")); }).code(), ErrorCode::not_found);
  EXPECT_EQ(error_of([&] { RecordReader(directory_.path()); }).code(), ErrorCode::invalid_argument);
  EXPECT_EQ(error_of([&] { RecordWriter(directory_.file("no/such/place")); }).code(),
            ErrorCode::not_found);
}

TEST_F(RecordIo, NoticesPackedFilesThatAreBroken) {
  const std::string good =
      bytes_of_file(directory_.write_records("r", {"some", "records"}, Compression::gzip));
  for (const std::string& bytes :
       {good.substr(0, good.size() - 3), good + "more", "no gzip" + good, good.substr(0, 20)}) {
    RecordReader reader(directory_.write("bad", bytes), {.compression = Compression::gzip});
    const Error error = error_of([&] { read(reader); });
    EXPECT_EQ(error.code(), ErrorCode::data_loss);
    EXPECT_THAT(error.message(), AllOf(HasSubstr("GZIP"), HasSubstr(directory_.file("bad"))));
  }
}

TEST_F(RecordIo, ReadsGzipFilesOneBehindTheOther) {
  const std::string one = bytes_of_file(directory_.write_records("1", {"a"}, Compression::gzip));
  const std::string two = bytes_of_file(directory_.write_records("2", {"b"}, Compression::gzip));
  RecordReader reader(directory_.write("both", one + two), {.compression = Compression::gzip});
  EXPECT_THAT(read(reader), ElementsAre("a", "b"));
}

TEST_F(RecordIo, IndexesAFile) {
  const std::string path = directory_.write_records("r", {"first", "", "third"});
  EXPECT_THAT(record_offsets(path), ElementsAre(0U, 21U, 37U));
  EXPECT_EQ(write_record_index(path), 3U);
  const auto index = load_record_index(index_path(path), 58);
  ASSERT_TRUE(index.has_value());
  EXPECT_THAT(index->offsets, ElementsAre(0U, 21U, 37U));
  EXPECT_FALSE(load_record_index(index_path(path), 59).has_value());  // the file has grown
  EXPECT_FALSE(load_record_index(directory_.file("none"), 58).has_value());
}

TEST_F(RecordIo, NamesAnIndexThatCannotBeReplaced) {
  const std::string path = directory_.write_records("r", {"first"});
  std::filesystem::create_directories(index_path(path) + "/folder");
  const Error error = error_of([&] { write_record_index(path); });
  EXPECT_EQ(error.code(), ErrorCode::failed_precondition);
  EXPECT_THAT(error.message(), HasSubstr("to write '" + index_path(path) + "'"));
  EXPECT_FALSE(std::filesystem::exists(index_path(path) + ".new"));
}

TEST_F(RecordIo, NoticesADamagedIndex) {
  const std::string path = directory_.write_records("r", {"first", "second"});
  write_record_index(path);
  const std::string good = bytes_of_file(index_path(path));
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    const std::string damaged = directory_.write("damaged", bad);
    EXPECT_EQ(error_of([&] { load_record_index(damaged, 43); }).code(), ErrorCode::data_loss) << i;
  }
}

// Offsets near 2^64 were once accepted, since the ends of their records wrapped around.
TEST_F(RecordIo, NoticesAnIndexOfImpossibleOffsets) {
  const std::string path = directory_.file("impossible");
  for (const std::uint64_t offset :
       {~std::uint64_t{0}, ~std::uint64_t{0} - 15, std::uint64_t{28}}) {
    save_record_index({.file_bytes = 43, .offsets = {offset}}, path);
    EXPECT_EQ(error_of([&] { load_record_index(path, 43); }).code(), ErrorCode::data_loss);
  }
  save_record_index({.file_bytes = 43, .offsets = {27}}, path);
  EXPECT_TRUE(load_record_index(path, 43).has_value());
}

TEST(CompressionName, IsReadAsTfWritesIt) {
  EXPECT_EQ(parse_compression(""), Compression::none);
  EXPECT_EQ(parse_compression("ZLIB"), Compression::zlib);
  EXPECT_EQ(parse_compression("GZIP"), Compression::gzip);
  const Error error = error_of([] { parse_compression("LZ4"); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.message(), HasSubstr("LZ4"));
}

}  // namespace
}  // namespace cohort::data
