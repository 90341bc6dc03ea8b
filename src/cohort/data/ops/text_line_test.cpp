// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "cohort/data/files/file_fixture.h"
#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;

using Strings = std::vector<std::string>;

class TextLine : public ::testing::Test {
 protected:
  Strings lines_of(std::string_view text) const {
    return elements_of(Dataset::text_line(StringTensor(directory_.write("t", text))));
  }

  ScratchDirectory directory_;
};

Dataset suite_lines(FileOptions options) {
  static const ScratchDirectory directory;
  const std::string prefix(name_of(options.compression));
  const Strings files{directory.write(prefix + "a", "1\n2\r\n\n3", options.compression),
                      directory.write(prefix + "b", "4\n5\n", options.compression)};
  return Dataset::text_line(StringTensor(files), options);
}

INSTANTIATE_TEST_SUITE_P(
    TextLine, DatasetOp,
    ::testing::Values(
        DatasetOpCase{"Plain", [] { return suite_lines({}); }},
        DatasetOpCase{"Zlib", [] { return suite_lines({.compression = Compression::zlib}); }},
        DatasetOpCase{"Parallel",
                      [] { return suite_lines({.num_parallel_reads = 3, .buffer_bytes = 1}); }}));

TEST_F(TextLine, EndsLinesInEveryWay) {
  EXPECT_THAT(lines_of("x\r\ny\nz"), ElementsAre("'x'", "'y'", "'z'"));
  EXPECT_THAT(lines_of("a\n\nb\n"), ElementsAre("'a'", "''", "'b'"));
  EXPECT_THAT(lines_of(""), ElementsAre());
  EXPECT_THAT(lines_of("\n"), ElementsAre("''"));
}

// Regression: it was part of the last line.
TEST_F(TextLine, DropsACarriageReturnAtTheEndOfTheFile) {
  EXPECT_THAT(lines_of("x\r\ny\r"), ElementsAre("'x'", "'y'"));
  EXPECT_THAT(lines_of("x\n\r"), ElementsAre("'x'"));
}

// tf drops every '\r'.
TEST_F(TextLine, KeepsACarriageReturnInsideALine) {
  EXPECT_THAT(lines_of("a\rb\r\r\nc"), ElementsAre("'a\rb\r'", "'c'"));
}

TEST_F(TextLine, ReadsLinesThatAreLongerThanTheBuffer) {
  const std::string wide(10'000, 'w');
  const std::string path = directory_.write("t", wide + "\r\n" + wide + "\nx");
  EXPECT_THAT(elements_of(Dataset::text_line(StringTensor(path), {.buffer_bytes = 1})),
              ElementsAre("'" + wide + "'", "'" + wide + "'", "'x'"));
}

TEST_F(TextLine, ReportsAMissingFileOnce) {
  const std::string path = directory_.write("t", "q");
  const Strings files{path, directory_.file("nope"), path};
  EXPECT_THAT(elements_of(Dataset::text_line(StringTensor(files))),
              ElementsAre("'q'", "error not_found", "'q'"));
}

TEST_F(TextLine, ReadsPackedFiles) {
  const std::string path = directory_.write("t", "q\nw\n", Compression::gzip);
  EXPECT_THAT(
      elements_of(Dataset::text_line(StringTensor(path), {.compression = Compression::gzip})),
      ElementsAre("'q'", "'w'"));
}

}  // namespace
}  // namespace cohort::data
