// SPDX-License-Identifier: Apache-2.0
// Files that change while they are read. Regression: readers took the change for the end of the
// file, read bytes that were not there before, or were killed by SIGBUS.
#include <gmock/gmock.h>

#include <chrono>
#include <filesystem>

#include "cohort/data/files/file_fixture.h"
#include "cohort/data/graph/dataset_op_suite.h"
#include "cohort/data/record_io.h"

namespace cohort::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Each value has ten bytes in its file, so that the shortened file holds whole values.
constexpr std::size_t kValues = 20'000;
constexpr std::size_t kValueBytes = 10;
constexpr FileOptions kSmallBuffer{.buffer_bytes = 4 << 10};

std::string lines() {
  std::string text;
  for (std::size_t i = 0; i < kValues; ++i) text += std::to_string(100'000'000 + i) + "\n";
  return text;
}

struct ReaderCase {
  const char* name;
  Dataset (*open)(const ScratchDirectory& directory, const std::string& path);
  std::size_t bytes_per_value = kValueBytes;
};

void PrintTo(const ReaderCase& reader, std::ostream* stream) { *stream << reader.name; }

class ChangedFile : public ::testing::TestWithParam<ReaderCase> {
 protected:
  std::string path() const { return directory_.file("data"); }

  // Call it after the first value was read.
  void expect_data_loss_at_the_end(Iterator& iterator, const std::string& how) const {
    std::size_t values = 1;
    const Error error = error_of([&] {
      while (iterator.try_next()) ++values;
    });
    EXPECT_EQ(error.code(), ErrorCode::data_loss);
    EXPECT_THAT(error.message(), AllOf(HasSubstr("'" + path() + "'"), HasSubstr(how)));
    EXPECT_THAT(values, ::testing::AnyOf(kValues - 1, kValues));
    EXPECT_FALSE(iterator.try_next().has_value());
  }

  ScratchDirectory directory_;
};

TEST_P(ChangedFile, ShortenedIsAnErrorThatNamesIt) {
  Iterator iterator = GetParam().open(directory_, path()).iterator();
  EXPECT_EQ(drain(iterator, 1).size(), 1U);
  std::filesystem::resize_file(path(), kValues / 2 * GetParam().bytes_per_value);
  const Error error = error_of([&] {
    while (iterator.try_next()) continue;
  });
  EXPECT_EQ(error.code(), ErrorCode::data_loss);
  EXPECT_THAT(error.message(), AllOf(HasSubstr("'" + path() + "'"), HasSubstr("shortened")));
}

// A reader by number yields the error instead of its last value, and then the following values.
TEST_P(ChangedFile, ExtendedIsAnErrorAtItsEnd) {
  Iterator iterator = GetParam().open(directory_, path()).iterator();
  EXPECT_EQ(drain(iterator, 1).size(), 1U);
  directory_.write("data", bytes_of_file(path()) + std::string(GetParam().bytes_per_value, '7'));
  expect_data_loss_at_the_end(iterator, "extended");
}

TEST_P(ChangedFile, WrittenToIsAnErrorAtItsEnd) {
  Iterator iterator = GetParam().open(directory_, path()).iterator();
  EXPECT_EQ(drain(iterator, 1).size(), 1U);
  std::filesystem::last_write_time(
      path(), std::filesystem::last_write_time(path()) + std::chrono::hours(1));
  expect_data_loss_at_the_end(iterator, "written to");
}

TEST_P(ChangedFile, ReplacedByAnotherIsReadToTheEnd) {
  Iterator iterator = GetParam().open(directory_, path()).iterator();
  EXPECT_EQ(drain(iterator, 1).size(), 1U);
  std::filesystem::rename(directory_.write("other", "other"), path());
  EXPECT_EQ(drain(iterator, kValues).size(), kValues - 1);
}

// Readers in order and readers by number.
const ReaderCase kReaders[] = {
    {"Lines",
     [](const ScratchDirectory& directory, const std::string&) {
       return Dataset::text_line(StringTensor(directory.write("data", lines())), kSmallBuffer);
     }},
    {"Rows",
     [](const ScratchDirectory& directory, const std::string&) {
       return Dataset::csv(StringTensor(directory.write("data", lines())),
                           {.columns = {{.dtype = at::kLong}}, .file = kSmallBuffer});
     }},
    {"Chunks",
     [](const ScratchDirectory& directory, const std::string&) {
       FileOptions in_order = kSmallBuffer;
       in_order.num_parallel_reads = 2;
       return Dataset::fixed_length_record(StringTensor(directory.write("data", lines())),
                                           {.record_bytes = kValueBytes, .file = in_order});
     }},
    {"ChunksByNumber",
     [](const ScratchDirectory& directory, const std::string&) {
       return Dataset::fixed_length_record(StringTensor(directory.write("data", lines())),
                                           {.record_bytes = kValueBytes});
     }},
    {"Records",
     [](const ScratchDirectory& directory, const std::string&) {
       const std::vector<std::string> records(kValues, "0123456789");
       return Dataset::tf_record(StringTensor(directory.write_records("data", records)),
                                 kSmallBuffer);
     },
     kValueBytes + 16},
    {"RecordsByNumber",
     [](const ScratchDirectory& directory, const std::string& path) {
       const std::vector<std::string> records(kValues, "0123456789");
       directory.write_records("data", records);
       write_record_index(path);
       return Dataset::tf_record(StringTensor(path));
     },
     kValueBytes + 16},
};

INSTANTIATE_TEST_SUITE_P(Readers, ChangedFile, ::testing::ValuesIn(kReaders),
                         [](const auto& reader) { return reader.param.name; });

// A shortened compressed file may end at the end of one of its streams.
TEST_F(ChangedFile, ShortenedWithPackedLinesIsAnErrorToo) {
  const std::string part = bytes_of_file(directory_.write("part", lines(), Compression::gzip));
  std::string bytes;
  while (bytes.size() < (1 << 20)) bytes += part;
  directory_.write("data", bytes);
  Iterator iterator =
      Dataset::text_line(StringTensor(path()), {.compression = Compression::gzip}).iterator();
  EXPECT_EQ(drain(iterator, 1).size(), 1U);
  std::filesystem::resize_file(path(), bytes.size() / part.size() / 2 * part.size());
  const Error error = error_of([&] {
    while (iterator.try_next()) continue;
  });
  EXPECT_EQ(error.code(), ErrorCode::data_loss);
  EXPECT_THAT(error.message(), AllOf(HasSubstr("'" + path() + "'"), HasSubstr("shortened")));
}

TEST_F(ChangedFile, ExtendedWithPackedLinesIsAnErrorToo) {
  const std::string part = bytes_of_file(directory_.write("data", lines(), Compression::gzip));
  Iterator iterator =
      Dataset::text_line(StringTensor(path()), {.compression = Compression::gzip}).iterator();
  EXPECT_EQ(drain(iterator, 1).size(), 1U);
  directory_.write("data", part + part);
  expect_data_loss_at_the_end(iterator, "extended");
}

// Regression: IDX files were mapped, so that an access after the new end was a SIGBUS.
class ShortenedIdx : public ::testing::Test {
 protected:
  std::string write_images() const {
    std::string bytes{'\0', '\0', '\x08', '\x02', '\0', '\x01',
                      '\0', '\0', '\0',   '\0',   '\0', '\x02'};
    return directory_.write("images", bytes + std::string(2 << 16, 'x'));
  }
  ScratchDirectory directory_;
};

TEST_F(ShortenedIdx, DoesNotChangeARunThatHasBegun) {
  const std::string path = write_images();
  Iterator iterator = Dataset::idx({.images = path, .labels = {}}).iterator();
  const std::vector<std::string> first = drain(iterator, 1);
  std::filesystem::resize_file(path, 12);
  EXPECT_EQ(drain(iterator, 1 << 17), std::vector<std::string>((1 << 16) - 1, first.at(0)));
}

TEST_F(ShortenedIdx, BeforeItsRunIsAnErrorThatNamesIt) {
  const std::string path = write_images();
  const Dataset images = Dataset::idx({.images = path, .labels = {}});
  std::filesystem::resize_file(path, 50'000);
  const Error error = error_of([&] {
    Iterator iterator = images.iterator();
    drain(iterator, 1);
  });
  EXPECT_EQ(error.code(), ErrorCode::data_loss);
  EXPECT_THAT(error.message(), AllOf(HasSubstr("'" + path + "'"), HasSubstr("truncated")));
}

}  // namespace
}  // namespace cohort::data
