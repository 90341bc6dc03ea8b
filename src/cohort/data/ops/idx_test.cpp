// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

// The bytes of an IDX file; values wider than a byte are written big-endian.
std::string idx_bytes(unsigned type, std::vector<std::uint32_t> sizes, std::string values) {
  std::string bytes{'\0', '\0', static_cast<char>(type), static_cast<char>(sizes.size())};
  for (const std::uint32_t size : sizes) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(size >> shift);
  }
  return bytes + values;
}

std::string counting(std::size_t count) {
  std::string values;
  for (std::size_t i = 0; i < count; ++i) values += static_cast<char>(i);
  return values;
}

class Idx : public ::testing::Test {
 protected:
  Idx() : directory_(fs::path(::testing::TempDir()) / ("idx_" + std::to_string(::getpid()))) {
    fs::create_directories(directory_);
  }
  ~Idx() override { fs::remove_all(directory_); }

  std::string file(const std::string& name, const std::string& bytes) const {
    const std::string path = (directory_ / name).string();
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  std::string images(std::uint32_t count) const {
    return file("images", idx_bytes(8, {count, 1, 2}, counting(count * 2)));
  }
  std::string labels(std::uint32_t count) const {
    return file("labels", idx_bytes(8, {count}, counting(count)));
  }
  Dataset mnist(std::uint32_t count) const {
    return Dataset::idx({.images = images(count), .labels = labels(count)});
  }
  std::string directory() const { return directory_.string(); }

 private:
  fs::path directory_;
};

Error error_of_idx(const IdxFiles& files) {
  return error_of([&] { Dataset::idx(files); });
}

// The suite's files exist until the process exits.
Dataset suite_idx() {
  const std::string path = ::testing::TempDir() + "suite_images_" + std::to_string(::getpid());
  std::ofstream(path, std::ios::binary) << idx_bytes(8, {5, 2}, counting(10));
  return Dataset::idx({.images = path, .labels = {}});
}

INSTANTIATE_TEST_SUITE_P(Idx, DatasetOp,
                         ::testing::Values(DatasetOpCase{"Images", suite_idx},
                                           DatasetOpCase{"Pipeline", [] {
                                                           return suite_idx()
                                                               .shard(2, 0)
                                                               .shuffle(2,
                                                                        {.seed = 1,
                                                                         .reshuffle_each_iteration =
                                                                             false})
                                                               .repeat(2)
                                                               .batch(2);
                                                         }}));

TEST_F(Idx, YieldsImagesWithTheirLabels) {
  EXPECT_THAT(elements_of(mnist(2)), ElementsAre("([[0, 1]], 0)", "([[2, 3]], 1)"));
  EXPECT_EQ(mnist(2).element_spec().to_string(), "(uint8[1, 2], uint8[])");
  EXPECT_EQ(mnist(2).cardinality(), 2);
}

TEST_F(Idx, YieldsImagesAlone) {
  EXPECT_THAT(elements_of(Dataset::idx({.images = images(2), .labels = {}})),
              ElementsAre("[[0, 1]]", "[[2, 3]]"));
}

TEST_F(Idx, ReadsWiderValuesInTheirByteOrder) {
  const std::string wide =
      file("wide", idx_bytes(0x0c, {2, 1}, std::string("\0\0\1\2\xff\xff\xff\xff", 8)));
  EXPECT_THAT(elements_of(Dataset::idx({.images = wide, .labels = {}})),
              ElementsAre("[258]", "[-1]"));
  const std::string real = file("real", idx_bytes(0x0d, {1, 1}, std::string("\x3f\xc0\0\0", 4)));
  EXPECT_THAT(elements_of(Dataset::idx({.images = real, .labels = {}})), ElementsAre("[1.5]"));
}

TEST_F(Idx, MayBeEmpty) { EXPECT_THAT(elements_of(mnist(0)), ElementsAre()); }

TEST_F(Idx, NamesAMissingFile) {
  const Error error = error_of_idx({.images = directory() + "/none", .labels = {}});
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  EXPECT_THAT(error.message(), AllOf(HasSubstr("[data.idx]"), HasSubstr(directory() + "/none")));
  EXPECT_EQ(error_of_idx({.images = images(2), .labels = directory() + "/none"}).code(),
            ErrorCode::not_found);
}

TEST_F(Idx, RefusesADirectory) {
  EXPECT_THAT(error_of_idx({.images = directory(), .labels = {}}).message(),
              HasSubstr("regular file"));
}

TEST_F(Idx, RefusesANamedPipeThatNobodyWrites) {
  const std::string pipe = directory() + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(error_of_idx({.images = pipe, .labels = {}}).message(), HasSubstr("regular file"));
}

TEST_F(Idx, NamesATruncatedFile) {
  const std::string path = file("short", idx_bytes(8, {3, 2, 2}, counting(11)));
  const Error error = error_of_idx({.images = path, .labels = {}});
  EXPECT_EQ(error.code(), ErrorCode::data_loss);
  EXPECT_THAT(error.message(),
              AllOf(HasSubstr("expected the values of uint8[3, 2, 2]"), HasSubstr(path),
                    HasSubstr("got 11 bytes: the file is truncated at byte 27")));
}

TEST_F(Idx, NamesAFileThatIsTooLong) {
  const std::string path = file("long", idx_bytes(8, {3}, counting(4)));
  EXPECT_THAT(error_of_idx({.images = path, .labels = {}}).message(), HasSubstr("too long"));
}

TEST_F(Idx, NamesAHeaderThatIsCutOff) {
  EXPECT_THAT(error_of_idx({.images = file("empty", ""), .labels = {}}).message(),
              HasSubstr("got 0 bytes"));
  const std::string cut = file("cut", idx_bytes(8, {3, 2}, "").substr(0, 9));
  EXPECT_THAT(error_of_idx({.images = cut, .labels = {}}).message(),
              HasSubstr("expected a header of 12 bytes"));
}

TEST_F(Idx, NamesAWrongMagic) {
  const Error error = error_of_idx({.images = file("text", "hello, world"), .labels = {}});
  EXPECT_EQ(error.code(), ErrorCode::data_loss);
  EXPECT_THAT(error.message(), HasSubstr("got 68656c6c"));
  const std::string unknown = file("type", idx_bytes(7, {1}, "x"));
  EXPECT_THAT(error_of_idx({.images = unknown, .labels = {}}).message(), HasSubstr("got 00000701"));
  const std::string gzip = file("gzip", "\x1f\x8b\x08\x01....");
  EXPECT_THAT(error_of_idx({.images = gzip, .labels = {}}).message(),
              HasSubstr("gzip-compressed: unpack it first"));
}

TEST_F(Idx, NamesAWrongCountOfLabels) {
  const Error error = error_of_idx({.images = images(3), .labels = labels(2)});
  EXPECT_EQ(error.code(), ErrorCode::data_loss);
  EXPECT_THAT(error.message(), AllOf(HasSubstr("expected 3 labels"), HasSubstr("got 2")));
}

TEST_F(Idx, NoticesSwappedFiles) {
  EXPECT_THAT(error_of_idx({.images = labels(2), .labels = images(2)}).message(),
              HasSubstr("swapped?"));
}

TEST_F(Idx, RefusesSizesWhoseProductOverflows) {
  const std::string huge = file("huge", idx_bytes(8, {~0U, ~0U, ~0U, ~0U}, "x"));
  EXPECT_THAT(error_of_idx({.images = huge, .labels = {}}).message(), HasSubstr("truncated"));
}

TEST_F(Idx, GivesElementsThatMayBeWritten) {
  const Dataset dataset = mnist(2);
  for (Nest& element : dataset) element.items()[0].tensor().zero_();
  EXPECT_THAT(elements_of(dataset), ElementsAre("([[0, 1]], 0)", "([[2, 3]], 1)"));
}

class IdxOnAServer : public Idx {
 protected:
  static ErrorCode code_of_run(const Dataset& dataset, std::vector<std::string> data_dirs) {
    return error_of([&] { dataset.source({.seed = 0, .data_dirs = std::move(data_dirs)}); }).code();
  }
};

TEST_F(IdxOnAServer, IsReadUnderItsDataDirectories) {
  const Dataset arrived = Dataset::deserialize(mnist(2).serialize());
  Iterator iterator = arrived.iterator({.seed = 0, .data_dirs = {{"/nowhere", directory() + "/"}}});
  EXPECT_EQ(drain(iterator).size(), 2U);
}

TEST_F(IdxOnAServer, IsRefusedElsewhere) {
  const Dataset dataset = mnist(2);
  EXPECT_EQ(code_of_run(dataset, {}), ErrorCode::permission_denied);
  EXPECT_EQ(code_of_run(dataset, {directory() + "/im"}), ErrorCode::permission_denied);
  EXPECT_EQ(code_of_run(dataset, {directory() + "/deeper"}), ErrorCode::permission_denied);
  elements_of(dataset);  // files that are already open are refused too
  EXPECT_EQ(code_of_run(dataset, {}), ErrorCode::permission_denied);
}

TEST_F(IdxOnAServer, NamesPathAndRemedyWhereRefused) {
  const Error error = error_of(
      [&] { mnist(2).source({.seed = 0, .data_dirs = std::vector<std::string>{"/data"}}); });
  EXPECT_THAT(error.message(), AllOf(HasSubstr(directory() + "/images"), HasSubstr("(/data)"),
                                     HasSubstr("--data DIR")));
}

TEST_F(IdxOnAServer, IsRefusedBehindALinkThatLeadsOut) {
  const std::string inside = directory() + "/inside";
  fs::create_directories(inside);
  images(2);
  fs::create_symlink(directory() + "/images", inside + "/link");
  const Dataset dataset = Dataset::idx({.images = inside + "/link", .labels = {}});
  EXPECT_EQ(code_of_run(dataset, {inside}), ErrorCode::permission_denied);
  EXPECT_EQ(code_of_run(Dataset::idx({.images = inside + "/../images", .labels = {}}), {inside}),
            ErrorCode::permission_denied);
}

TEST_F(IdxOnAServer, OpensNothingBeforeItRuns) {
  const Bytes bytes = mnist(2).serialize();
  fs::remove(directory() + "/images");
  const Dataset arrived = Dataset::deserialize(bytes);
  EXPECT_EQ(arrived.cardinality(), 2);
  EXPECT_EQ(arrived.element_spec().to_string(), "(uint8[1, 2], uint8[])");
  EXPECT_EQ(error_of([&] { arrived.source({}); }).code(), ErrorCode::not_found);
}

TEST_F(IdxOnAServer, NoticesFilesThatChangedSinceThePipelineWasBuilt) {
  const Bytes bytes = mnist(2).serialize();
  mnist(3);
  const Error error = error_of([&] { Dataset::deserialize(bytes).source({}); });
  EXPECT_EQ(error.code(), ErrorCode::failed_precondition);
  EXPECT_THAT(error.message(),
              AllOf(HasSubstr("expected 2 elements"), HasSubstr("got 3 elements")));
}

}  // namespace
}  // namespace cohort::data
