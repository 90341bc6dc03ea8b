// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "cohort/data/files/file_fixture.h"
#include "cohort/data/files/file_reader.h"
#include "cohort/data/graph/dataset_op_suite.h"
#include "cohort/data/raw_readers.h"
#include "cohort/data/stages/stage.h"

namespace cohort::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Strings = std::vector<std::string>;

// "r1f0": record 1 of file 0.
Strings records_of_file(int file, int count) {
  Strings records;
  for (int i = 0; i < count; ++i) {
    records.push_back("r" + std::to_string(i) + "f" + std::to_string(file));
  }
  return records;
}

class TfRecord : public ::testing::Test {
 protected:
  std::string file(int number, int count, Compression compression = Compression::none) const {
    return directory_.write_records("f" + std::to_string(number), records_of_file(number, count),
                                    compression);
  }
  Dataset two_files(FileOptions options = {}) const {
    return Dataset::tf_record(
        StringTensor(Strings{file(0, 3, options.compression), file(1, 2, options.compression)}),
        options);
  }
  static bool is_by_number(const Dataset& dataset) {
    const StageContext context({.seed = 1, .data_dirs = std::nullopt}, Purpose::run);
    return dataset.node()->start(context)->rows() != nullptr;
  }

  ScratchDirectory directory_;
};

// The suite's files exist until the process exits.
const ScratchDirectory& suite_directory() {
  static const ScratchDirectory directory;
  return directory;
}

Dataset suite_records(const std::string& prefix, FileOptions options, bool is_indexed = false) {
  Strings files;
  for (int i = 0; i < 3; ++i) {
    const std::string name = prefix + std::to_string(i);
    files.push_back(suite_directory().write_records(name, records_of_file(i, i == 1 ? 1 : 3),
                                                    options.compression));
    if (is_indexed) write_record_index(files.back());
  }
  return Dataset::tf_record(StringTensor(files), options);
}

INSTANTIATE_TEST_SUITE_P(
    TfRecord, DatasetOp,
    ::testing::Values(
        DatasetOpCase{"Plain", [] { return suite_records("plain", {}); }},
        DatasetOpCase{"Gzip",
                      [] { return suite_records("gzip", {.compression = Compression::gzip}); }},
        DatasetOpCase{"Parallel", [] { return suite_records("par", {.num_parallel_reads = 2}); }},
        DatasetOpCase{"Batched", [] { return suite_records("batch", {}).batch(2); }},
        DatasetOpCase{"Indexed", [] { return suite_records("indexed", {}, true).shard(2, 1); }},
        DatasetOpCase{
            "Raw",
            [] {
              const StringTensor files(Strings{suite_directory().write_records("raw", {"a", "b"})});
              return raw_reader(Dataset::tf_record(files), files);
            }},
        DatasetOpCase{"OfADataset", [] {
                        const std::string path = suite_directory().write_records("of", {"a", "b"});
                        return Dataset::tf_record(
                            Dataset::from_tensor_slices(StringTensor(Strings{path})).repeat(2));
                      }}));

TEST_F(TfRecord, ReadsFilesOneAfterTheOther) {
  for (const Compression compression : {Compression::none, Compression::zlib, Compression::gzip}) {
    EXPECT_THAT(elements_of(two_files({.compression = compression})),
                ElementsAre("'r0f0'", "'r1f0'", "'r2f0'", "'r0f1'", "'r1f1'"));
  }
  EXPECT_EQ(two_files().element_spec().to_string(), "string[]");
  EXPECT_EQ(two_files().cardinality(), kUnknownCardinality);
}

TEST_F(TfRecord, ReadsFilesInTurn) {
  EXPECT_THAT(elements_of(two_files({.num_parallel_reads = 2})),
              ElementsAre("'r0f0'", "'r0f1'", "'r1f0'", "'r1f1'", "'r2f0'"));
}

// Like interleave() of three files, two at a time: the third file replaces an ended one at that
// one's next turn.
TEST_F(TfRecord, ReplacesAnEndedFileAtItsNextTurn) {
  const Strings files{file(0, 1), file(1, 3), file(2, 2)};
  EXPECT_THAT(elements_of(Dataset::tf_record(StringTensor(files), {.num_parallel_reads = 2})),
              ElementsAre("'r0f0'", "'r0f1'", "'r1f1'", "'r0f2'", "'r2f1'", "'r1f2'"));
}

TEST_F(TfRecord, FillsBatches) {
  EXPECT_THAT(elements_of(two_files().batch(2)),
              ElementsAre("['r0f0', 'r1f0']", "['r2f0', 'r0f1']", "['r1f1']"));
}

TEST_F(TfRecord, GoesOnBehindACorruptRecordWithTheNextFile) {
  const std::string bad = directory_.write(
      "bad", from_hex("040000000000000042455204723066303a409bf404000000000000004245520472306630b90a"
                      "68190400000000000000424552047232663094b68598"));
  const Dataset dataset = Dataset::tf_record(StringTensor(Strings{bad, file(1, 2)}));
  EXPECT_THAT(elements_of(dataset), ElementsAre("'r0f0'", "error data_loss", "'r0f1'", "'r1f1'"));
  EXPECT_THAT(elements_of(dataset.batch(2)), ElementsAre("error data_loss", "['r0f1', 'r1f1']"));
  EXPECT_THAT(elements_of(dataset.ignore_errors()), ElementsAre("'r0f0'", "'r0f1'", "'r1f1'"));
}

TEST_F(TfRecord, NamesFileAndByteOfACorruptRecord) {
  const std::string bad =
      directory_.write("bad", from_hex("0300000000000000b099490e666f79618abefe"));
  Iterator iterator = Dataset::tf_record(StringTensor(bad)).iterator();
  EXPECT_THAT(error_of([&] { iterator.try_next(); }).message(),
              AllOf(HasSubstr("[data.tf_record]"), HasSubstr("corrupted record at 12"),
                    HasSubstr(bad), HasSubstr("ignore_errors")));
  EXPECT_FALSE(iterator.try_next().has_value());
}

TEST_F(TfRecord, ReportsAMissingFileOnce) {
  const Strings files{file(0, 1), directory_.file("missing"), file(1, 1)};
  for (const std::int64_t parallel : {0, 1, 2}) {
    EXPECT_THAT(
        elements_of(Dataset::tf_record(StringTensor(files), {.num_parallel_reads = parallel})),
        ElementsAre("'r0f0'", "error not_found", "'r0f1'"));
  }
}

TEST_F(TfRecord, MayBeEmpty) {
  EXPECT_THAT(elements_of(Dataset::tf_record(StringTensor(directory_.write("e", "")))), IsEmpty());
  EXPECT_THAT(elements_of(Dataset::tf_record(StringTensor(Strings{}))), IsEmpty());
}

TEST_F(TfRecord, NoticesAPlainFileReadAsGzip) {
  EXPECT_THAT(
      elements_of(Dataset::tf_record(StringTensor(file(0, 1)), {.compression = Compression::gzip})),
      ElementsAre("error data_loss"));
}

TEST_F(TfRecord, RefusesNamesThatAreNoStrings) {
  const Error error = error_of([] { Dataset::tf_record(rows(3)); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.message(), AllOf(HasSubstr("[data.tf_record]"), HasSubstr("int64[]")));
  const Dataset vectors = Dataset::from_tensors(StringTensor(Strings{"a", "b"}));
  EXPECT_EQ(error_of([&] { Dataset::tf_record(vectors); }).code(), ErrorCode::invalid_argument);
}

TEST_F(TfRecord, RefusesImpossibleOptions) {
  const auto code_of = [&](FileOptions options) {
    return error_of([&] { two_files(options); }).code();
  };
  EXPECT_EQ(code_of({.num_parallel_reads = -2}), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of({.buffer_bytes = 0}), ErrorCode::invalid_argument);
}

TEST_F(TfRecord, ReadsByNumberWhereThereAreIndexes) {
  write_record_index(file(0, 3));
  EXPECT_FALSE(is_by_number(Dataset::tf_record(StringTensor(Strings{file(0, 3), file(1, 2)}))));
  const Strings files{directory_.file("f0"), directory_.file("f1")};
  for (const std::string& name : files) write_record_index(name);
  const Dataset dataset = Dataset::tf_record(StringTensor(files));
  EXPECT_TRUE(is_by_number(dataset.shard(2, 0).shuffle(2).repeat(2)));
  EXPECT_THAT(elements_of(dataset.shard(2, 1).batch(2)), ElementsAre("['r1f0', 'r0f1']"));
}

// The headers and data of all other records are damaged.
TEST_F(TfRecord, ReadsOnlyTheRecordsOfAShardWhereThereIsAnIndex) {
  const std::string path = file(0, 7);
  write_record_index(path);
  std::string bytes = bytes_of_file(path);
  const std::size_t record_bytes = bytes.size() / 7;
  for (const std::size_t other : {0, 2, 3, 5, 6}) {
    bytes.replace(other * record_bytes, record_bytes, record_bytes, 'x');
  }
  directory_.write("f0", bytes);
  const Dataset dataset = Dataset::tf_record(StringTensor(path));
  EXPECT_THAT(elements_of(dataset.shard(3, 1)), ElementsAre("'r1f0'", "'r4f0'"));
  EXPECT_THAT(elements_of(dataset.shard(3, 1).batch(2)), ElementsAre("['r1f0', 'r4f0']"));
  EXPECT_THAT(elements_of(dataset.skip(4).take(1)), ElementsAre("'r4f0'"));
}

TEST_F(TfRecord, FailsForTheBadRecordAloneWhereThereIsAnIndex) {
  const std::string path = file(0, 3);
  write_record_index(path);
  std::string bytes = bytes_of_file(path);
  bytes[21 + 12] = 'x';
  directory_.write("f0", bytes);
  EXPECT_THAT(elements_of(Dataset::tf_record(StringTensor(path))),
              ElementsAre("'r0f0'", "error data_loss", "'r2f0'"));
}

// Such a position was once restored as if it were a position by number.
TEST_F(TfRecord, RefusesAPositionFromBeforeThereWereIndexes) {
  const std::string path = file(0, 5);
  const auto position = [&] {
    Iterator iterator = Dataset::tf_record(StringTensor(path)).iterator();
    drain(iterator, 2);
    return iterator.save();
  };
  const auto refusal_of = [&](const Bytes& bytes) {
    Iterator iterator = Dataset::tf_record(StringTensor(path)).iterator();
    return error_of([&] { iterator.restore(bytes); });
  };
  const Bytes in_order = position();
  write_record_index(path);
  const Bytes by_number = position();
  EXPECT_EQ(refusal_of(in_order).code(), ErrorCode::failed_precondition);
  EXPECT_THAT(refusal_of(in_order).message(),
              AllOf(HasSubstr("files read by number, as '" + path), HasSubstr("FILE.index")));
  std::filesystem::remove(path + ".index");
  EXPECT_EQ(refusal_of(by_number).code(), ErrorCode::failed_precondition);
  EXPECT_THAT(refusal_of(by_number).message(), HasSubstr("got one in files read by number"));
}

// The system would open the file whose name ends at the zero byte.
TEST_F(TfRecord, RefusesAPathWithAZeroByte) {
  const std::string path = file(0, 1) + std::string("\0.txt", 5);
  EXPECT_THAT(elements_of(Dataset::tf_record(StringTensor(path))),
              ElementsAre("error invalid_argument"));
}

TEST_F(TfRecord, PassesOverAnIndexOfAnotherFile) {
  write_record_index(file(0, 3));
  const Dataset dataset = Dataset::tf_record(StringTensor(file(0, 2)));
  EXPECT_FALSE(is_by_number(dataset));
  EXPECT_THAT(elements_of(dataset), ElementsAre("'r0f0'", "'r1f0'"));
}

TEST_F(TfRecord, OpensFilesUnderTheDataDirectoriesAlone) {
  const Strings files{file(0, 1), "/etc/passwd", file(1, 1)};
  Iterator iterator = Dataset::tf_record(StringTensor(files))
                          .iterator({.seed = 0, .data_dirs = {{directory_.path()}}});
  EXPECT_THAT(drain(iterator), ElementsAre("'r0f0'", "error permission_denied", "'r0f1'"));
}

}  // namespace
}  // namespace cohort::data
