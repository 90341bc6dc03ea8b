// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "cohort/data/files/file_fixture.h"
#include "cohort/data/graph/dataset_op_suite.h"
#include "cohort/data/stages/stage.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Strings = std::vector<std::string>;

class FixedLengthRecord : public ::testing::Test {
 protected:
  Strings elements(std::string_view bytes, FixedLengthOptions options) const {
    const std::string path = directory_.write("f", bytes, options.file.compression);
    return elements_of(Dataset::fixed_length_record(StringTensor(path), options));
  }

  ScratchDirectory directory_;
};

Dataset suite_chunks(FileOptions options) {
  static const ScratchDirectory directory;
  const std::string prefix(name_of(options.compression));
  const Strings files{directory.write(prefix + "a", "aabbcc", options.compression),
                      directory.write(prefix + "b", "ddee", options.compression)};
  return Dataset::fixed_length_record(StringTensor(files), {.record_bytes = 2, .file = options});
}

INSTANTIATE_TEST_SUITE_P(
    FixedLengthRecord, DatasetOp,
    ::testing::Values(
        DatasetOpCase{"ByNumber", [] { return suite_chunks({}); }},
        DatasetOpCase{"Packed", [] { return suite_chunks({.compression = Compression::gzip}); }},
        DatasetOpCase{"Parallel", [] { return suite_chunks({.num_parallel_reads = 2}); }},
        DatasetOpCase{"Shuffled", [] {
                        return suite_chunks({}).shard(2, 0).shuffle(
                            3, {.seed = 1, .reshuffle_each_iteration = false});
                      }}));

TEST_F(FixedLengthRecord, CutsAFile) {
  EXPECT_THAT(elements("aabbccdd", {.record_bytes = 2}),
              ElementsAre("'aa'", "'bb'", "'cc'", "'dd'"));
  EXPECT_THAT(elements("", {.record_bytes = 2}), ElementsAre());
}

TEST_F(FixedLengthRecord, LeavesHeaderAndFooterOut) {
  for (const Compression compression : {Compression::none, Compression::zlib}) {
    const FixedLengthOptions options{.record_bytes = 2,
                                     .header_bytes = 3,
                                     .footer_bytes = 1,
                                     .file = {.compression = compression}};
    EXPECT_THAT(elements("HHHaabbF", options), ElementsAre("'aa'", "'bb'"));
    EXPECT_THAT(elements("HHHF", options), ElementsAre());
    EXPECT_THAT(elements("HHH", options), ElementsAre("error invalid_argument"));
  }
}

TEST_F(FixedLengthRecord, RefusesAFileOfAnotherLengthBeforeItsFirstRecord) {
  const Strings files{directory_.write("a", "aabb"), directory_.write("b", "aab"),
                      directory_.write("c", "cc")};
  EXPECT_THAT(elements_of(Dataset::fixed_length_record(StringTensor(files), {.record_bytes = 2})),
              ElementsAre("'aa'", "'bb'", "error invalid_argument", "'cc'"));
  EXPECT_THAT(elements("aaaab", {.record_bytes = 2, .file = {.compression = Compression::gzip}}),
              ElementsAre("error invalid_argument"));
}

TEST_F(FixedLengthRecord, RefusesImpossibleLengths) {
  const Error error = error_of([&] { elements("", {}); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.message(), HasSubstr("record_bytes > 0, got 0"));
  EXPECT_THAT(error_of([&] { elements("", {.record_bytes = 1, .header_bytes = -1}); }).message(),
              HasSubstr("got -1 and 0"));
}

TEST_F(FixedLengthRecord, ReadsOnlyTheRecordsOfAShard) {
  const std::string path = directory_.write("f", "aabbccddee");
  const Dataset dataset = Dataset::fixed_length_record(StringTensor(path), {.record_bytes = 2});
  EXPECT_THAT(elements_of(dataset.shard(2, 1)), ElementsAre("'bb'", "'dd'"));
  const StageContext context({.seed = 1, .data_dirs = std::nullopt}, Purpose::run);
  EXPECT_NE(dataset.shard(2, 1).node()->start(context)->rows(), nullptr);
}

TEST_F(FixedLengthRecord, NoticesAFileThatChangedWhileItIsRead) {
  const std::string path = directory_.write("f", "aabb");
  Iterator iterator =
      Dataset::fixed_length_record(StringTensor(path), {.record_bytes = 2}).iterator();
  directory_.write("f", "aa");
  EXPECT_EQ(error_of([&] { iterator.try_next(); }).code(), ErrorCode::failed_precondition);
}

}  // namespace
}  // namespace cohort::data
