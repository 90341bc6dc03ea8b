// SPDX-License-Identifier: Apache-2.0
// Files that are truncated or damaged: the error names the file and the byte, is thrown once, and
// ignore_errors() skips it.
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>

#include "cohort/data/files/file_fixture.h"
#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::HasSubstr;

struct BadFile {
  const char* name;
  // The bytes of a valid file, and a function that damages them.
  std::function<std::string(const ScratchDirectory& directory)> good;
  std::function<void(std::string& bytes)> damage;
  std::function<Dataset(StringTensor files)> read;
  const char* op;
  ErrorCode code;
  std::string byte;
};

void PrintTo(const BadFile& file, std::ostream* out) { *out << file.name; }

class BadFiles : public ::testing::TestWithParam<BadFile> {
 protected:
  std::string good() const { return GetParam().good(directory); }
  std::string bad() const {
    std::string bytes = good();
    GetParam().damage(bytes);
    return directory.write("bad", bytes);
  }
  Dataset read(const std::vector<std::string>& files) const {
    return GetParam().read(StringTensor(files));
  }
  ScratchDirectory directory;
};

TEST_P(BadFiles, AreNamedWithTheByteAndOnce) {
  const std::string bad = this->bad(), good = directory.write("good", this->good());
  std::vector<Error> errors;
  std::size_t elements = 0;
  Iterator iterator = read({bad, good}).iterator();
  while (true) {
    try {
      if (!iterator.try_next()) break;
      ++elements;
    } catch (const Error& error) {
      errors.push_back(error);
      ASSERT_LT(errors.size(), 5u);
    }
  }
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].code(), GetParam().code) << errors[0].what();
  for (const std::string& word :
       {"[data." + std::string(GetParam().op) + "]", "'" + bad + "'", GetParam().byte}) {
    EXPECT_THAT(errors[0].what(), HasSubstr(word));
  }
  EXPECT_GE(elements, elements_of(read({good})).size()) << "the next file is read all the same";
  EXPECT_EQ(elements_of(read({bad, good}).ignore_errors()).size(), elements);
}

std::string records(const ScratchDirectory& directory) {
  return bytes_of_file(directory.write_records("w", {"one", "two", "three"}));
}
template <Compression kCompression>
std::string packed(const ScratchDirectory& directory) {
  return bytes_of_file(directory.write("w", records(directory), kCompression));
}
std::string text(const ScratchDirectory&) { return "1,a\n2,b\n3,c\n"; }

std::string name_of_case(const ::testing::TestParamInfo<BadFile>& info) { return info.param.name; }

Dataset tf_records(StringTensor files) { return Dataset::tf_record(std::move(files)); }
Dataset gzip_records(StringTensor files) {
  return Dataset::tf_record(std::move(files), {.compression = Compression::gzip});
}
Dataset zlib_records(StringTensor files) {
  return Dataset::tf_record(std::move(files), {.compression = Compression::zlib});
}
Dataset gzip_lines(StringTensor files) {
  return Dataset::text_line(std::move(files), {.compression = Compression::gzip});
}
Dataset chunks(StringTensor files) {
  return Dataset::fixed_length_record(std::move(files), {.record_bytes = 4});
}
Dataset rows_of(StringTensor files) {
  return Dataset::csv(std::move(files), {.columns = {{at::kLong}, {kString}}});
}

INSTANTIATE_TEST_SUITE_P(
    Files, BadFiles,
    ::testing::Values(
        BadFile{"RecordLength", &records, [](std::string& bytes) { bytes[9] ^= 1; }, &tf_records,
                "tf_record", ErrorCode::data_loss, "at 0 "},
        BadFile{"RecordData", &records, [](std::string& bytes) { bytes[19 + 13] ^= 1; },
                &tf_records, "tf_record", ErrorCode::data_loss, "at 31 "},
        BadFile{"RecordChecksum", &records, [](std::string& bytes) { bytes.back() ^= 1; },
                &tf_records, "tf_record", ErrorCode::data_loss, "at 50 "},
        BadFile{"RecordCutInItsData", &records, [](std::string& bytes) { bytes.resize(33); },
                &tf_records, "tf_record", ErrorCode::data_loss, "truncated record at 19 "},
        BadFile{"RecordCutInItsHeader", &records, [](std::string& bytes) { bytes.resize(45); },
                &tf_records, "tf_record", ErrorCode::data_loss, "truncated record at 38 "},
        BadFile{"GzipCut", &packed<Compression::gzip>,
                [](std::string& bytes) { bytes.resize(bytes.size() - 12); }, &gzip_records,
                "tf_record", ErrorCode::data_loss, "byte "},
        BadFile{"GzipOfLinesDamaged", &packed<Compression::gzip>,
                [](std::string& bytes) { bytes[bytes.size() - 6] ^= 1; }, &gzip_lines, "text_line",
                ErrorCode::data_loss, "byte "},
        BadFile{"ZlibThatIsNone", &packed<Compression::zlib>,
                [](std::string& bytes) { bytes[0] ^= 1; }, &zlib_records, "tf_record",
                ErrorCode::data_loss, "byte "},
        BadFile{"ChunksOfAnotherSize",
                [](const ScratchDirectory&) { return std::string("aaaabbbb"); },
                [](std::string& bytes) { bytes += "c"; }, &chunks, "fixed_length_record",
                ErrorCode::invalid_argument, "9 "},
        BadFile{"NoNumberInARow", &text, [](std::string& bytes) { bytes[4] = 'x'; }, &rows_of,
                "csv", ErrorCode::invalid_argument, "before byte 8"},
        BadFile{"AShortRow", &text, [](std::string& bytes) { bytes[5] = ';'; }, &rows_of, "csv",
                ErrorCode::invalid_argument, "before byte 8"}),
    name_of_case);

TEST(BadShipping, NamesTheNodeAndWhy) {
  const auto branching = [](at::Tensor x) { return x.item<std::int64_t>() > 1 ? x : x + 1; };
  const Dataset dataset = rows(4)
                              .map([](at::Tensor x) { return x + 1; })
                              .map(Function(branching, {.name = "branching"}))
                              .batch(2);
  const Error error = error_of([&] { dataset.serialize(); });
  EXPECT_THAT(error.what(), HasSubstr("'branching'"));
  EXPECT_THAT(error.what(),
              HasSubstr("shipping op 3 of 4, 'map', of the pipeline 'range map map batch'"));
}

}  // namespace
}  // namespace cohort::data
