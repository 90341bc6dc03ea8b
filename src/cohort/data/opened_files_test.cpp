// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/opened_files.h"

#include <gmock/gmock.h>

#include "cohort/data/dataset.h"
#include "cohort/data/field_function.h"
#include "cohort/data/files/file_fixture.h"
#include "cohort/data/graph/dataset_op_suite.h"
#include "cohort/data/iterator.h"
#include "cohort/data/record_io.h"
#include "cohort/testing/throws_error.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::throws_error;
using OpenedPtr = std::shared_ptr<OpenedFiles>;

// All elements of a run that continues one in which `before` were read.
std::vector<std::string> run(const Dataset& dataset, const OpenedPtr& files) {
  Iterator iterator(cancellable_source(dataset, {.seed = 1}, {}, files));
  std::vector<std::string> elements;
  while (const std::optional<Nest> element = iterator.try_next())
    elements.push_back(show(*element));
  return elements;
}
OpenedPtr after(const OpenedPtr& first) { return std::make_shared<OpenedFiles>(first->take_new()); }

std::vector<std::string> paths_of(const std::vector<FileFingerprint>& files) {
  std::vector<std::string> paths;
  for (const FileFingerprint& file : files) paths.push_back(file.path);
  return paths;
}

std::string idx_bytes(const std::string& values) {
  const std::string header{'\0', '\0', '\x08', '\x01', '\0', '\0', '\0'};
  return header + static_cast<char>(values.size()) + values;
}

// Each writes and changes the file "data"; a change keeps the file's size.
struct SourceCase {
  const char* name;
  // A new pipeline over the file, as one that another process builds.
  Dataset (*open)(const std::string& path);
  std::string (*bytes)(char last);
};

void PrintTo(const SourceCase& source, std::ostream* out) { *out << source.name; }

std::string three_lines(char last) { return std::string("1\n2\n") + last + "\n"; }
Dataset lines_of(const std::string& path) { return Dataset::text_line(StringTensor(path)); }

class OpenedFilesTest : public ::testing::TestWithParam<SourceCase> {
 protected:
  std::string path() const { return directory.file("data"); }
  std::string write(char last = '3') const {
    return directory.write("data", GetParam().bytes(last));
  }
  Dataset source() const { return GetParam().open(path()); }

  ScratchDirectory directory;
  OpenedPtr first = std::make_shared<OpenedFiles>();
};

TEST_P(OpenedFilesTest, NotesItsFileOnce) {
  write();
  run(source(), first);
  EXPECT_THAT(paths_of(first->take_new()), ::testing::Contains(path()));
  EXPECT_THAT(first->take_new(), IsEmpty());
}

TEST_P(OpenedFilesTest, ContinuesWithAFileThatWasCopied) {
  write();
  const std::vector<std::string> elements = run(source(), first);
  std::filesystem::remove(path());
  write();
  std::filesystem::last_write_time(
      path(), std::filesystem::last_write_time(path()) + std::chrono::hours(1));
  const OpenedPtr second = after(first);
  EXPECT_EQ(run(source(), second), elements);
  EXPECT_THAT(second->take_new(), IsEmpty()) << "known already";
}

// Once it continued at its element number over other rows.
TEST_P(OpenedFilesTest, RefusesAFileWithOtherRowsAndNamesIt) {
  write();
  run(source(), first);
  write('4');
  EXPECT_THAT([&] { run(source(), after(first)); },
              throws_error(ErrorCode::data_loss, "'" + path() + "'"));
}

const SourceCase kSources[] = {
    {"TextLine", lines_of, three_lines},
    {"Interleaved",
     [](const std::string& path) {
       return Dataset::from_tensor_slices(StringTensor({2}, {path, path}))
           .interleave([](StringTensor name) { return Dataset::text_line(name); });
     },
     three_lines},
    {"Csv",
     [](const std::string& path) {
       return Dataset::csv(StringTensor(path), {.columns = {{.dtype = at::kLong}}}).batch(2);
     },
     three_lines},
    {"FixedLengthByNumber",
     [](const std::string& path) {
       return Dataset::fixed_length_record(StringTensor(path), {.record_bytes = 2}).shuffle(3);
     },
     three_lines},
    {"Idx", [](const std::string& path) { return Dataset::idx({.images = path, .labels = {}}); },
     [](char last) { return idx_bytes(std::string("12") + last); }},
    {"Lookup",
     [](const std::string& path) {
       return Dataset::from_tensor_slices(StringTensor({2}, {"1", "2"}))
           .map(lookup(FieldPath(), {.file = path, .num_oov_indices = 1}));
     },
     three_lines},
};

INSTANTIATE_TEST_SUITE_P(Sources, OpenedFilesTest, ::testing::ValuesIn(kSources),
                         [](const auto& source) { return source.param.name; });

class ChangedFiles : public ::testing::Test {
 protected:
  ScratchDirectory directory;
  OpenedPtr first = std::make_shared<OpenedFiles>();
};

TEST_F(ChangedFiles, RecordsWithAnIndexAreCompared) {
  const std::string path = directory.write_records("data", {"1", "2"});
  write_record_index(path);
  run(Dataset::tf_record(StringTensor(path)), first);
  directory.write_records("data", {"1", "3"});
  EXPECT_THAT([&] { run(Dataset::tf_record(StringTensor(path)), after(first)); },
              throws_error(ErrorCode::data_loss, "other bytes"));
}

// The numbers of its rows depend on the sizes of all files.
TEST_F(ChangedFiles, TheSizeOfAFileReadByNumberCountsBeforeItsRowsAreRead) {
  const std::string one = directory.write("one", "1122");
  const std::string two = directory.write("two", "3344");
  const auto chunks = [&] {
    return Dataset::fixed_length_record(StringTensor({2}, {one, two}), {.record_bytes = 2});
  };
  Iterator iterator(cancellable_source(chunks(), {}, {}, first));
  EXPECT_EQ(show(*iterator.try_next()), "'11'");
  directory.write("two", "334455");
  EXPECT_THAT([&] { run(chunks(), after(first)); },
              throws_error(ErrorCode::data_loss, "'" + two + "'"));
}

TEST_F(ChangedFiles, AFileThatWasNotReadYetMayChange) {
  const std::string one = directory.write("one", "1\n");
  const std::string two = directory.write("two", "2\n");
  const auto lines = [&] { return Dataset::text_line(StringTensor({2}, {one, two})); };
  Iterator iterator(cancellable_source(lines(), {}, {}, first));
  EXPECT_EQ(show(*iterator.try_next()), "'1'");
  directory.write("two", "3\n");
  EXPECT_THAT(run(lines(), after(first)), ElementsAre("'1'", "'3'"));
}

TEST_F(ChangedFiles, AMissingFileIsNamed) {
  const std::string path = directory.write("data", "1\n");
  run(lines_of(path), first);
  std::filesystem::remove(path);
  EXPECT_THAT([&] { run(lines_of(path), after(first)); },
              throws_error(ErrorCode::data_loss, "expected 2 bytes, got no file"));
}

// It took no place the first time.
TEST_F(ChangedFiles, AFileThatWasMissingAtFirstIsRefusedLater) {
  const std::string path = directory.file("data");
  const auto lines = [&] { return lines_of(path).ignore_errors(); };
  EXPECT_THAT(run(lines(), first), IsEmpty());
  directory.write("data", "1\n");
  const OpenedPtr second = after(first);
  EXPECT_THAT(run(lines(), second), IsEmpty()) << "ignore_errors() dropped the error";
  EXPECT_THAT([&] { second->check(); },
              throws_error(ErrorCode::data_loss, "expected no file that can be read, got 2 bytes"));
}

TEST_F(ChangedFiles, AChangeBetweenTwoReadsOfOneRunIsFound) {
  const std::string path = directory.write("data", "1\n");
  Iterator iterator(cancellable_source(lines_of(path).repeat(2), {}, {}, first));
  EXPECT_EQ(show(*iterator.try_next()), "'1'");
  directory.write("data", "2\n");
  EXPECT_THAT([&] { iterator.try_next(); }, throws_error(ErrorCode::data_loss, "'" + path + "'"));
}

// The cache holds the elements, so its input is not read again.
TEST_F(ChangedFiles, ACompleteCacheIsComparedInPlaceOfItsInput) {
  const std::string path = directory.write("data", "1\n2\n");
  const auto cached = [&] { return lines_of(path).cache(directory.file("cache")); };
  run(cached(), std::make_shared<OpenedFiles>());
  EXPECT_THAT(run(cached(), first), SizeIs(2));
  directory.write("data", "3\n4\n");
  const OpenedPtr second = after(first);
  EXPECT_THAT(run(cached(), second), ElementsAre("'1'", "'2'"));
}

TEST_F(ChangedFiles, RunsWithoutNotesReadWhatIsThere) {
  const std::string path = directory.write("data", "1\n");
  EXPECT_THAT(run(lines_of(path), nullptr), ElementsAre("'1'"));
  directory.write("data", "2\n");
  EXPECT_THAT(run(lines_of(path), nullptr), ElementsAre("'2'"));
}

}  // namespace
}  // namespace cohort::data
