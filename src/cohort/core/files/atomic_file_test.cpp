// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/files/detail/atomic_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string_view>

#include "cohort/testing/temporary_folder.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::throws_error;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

class AtomicFileTest : public ::testing::Test {
 protected:
  testing::TemporaryFolder folder_;
};

TEST_F(AtomicFileTest, AppearsWhenItIsCommitted) {
  folder_.write("file", "before");
  {
    AtomicFile file(folder_.file("file"), "test.write");
    file.write(bytes_of("af"));
    file.write(bytes_of("ter"));
    EXPECT_EQ(folder_.read("file"), "before");
    file.commit();
  }
  EXPECT_EQ(folder_.read("file"), "after");
  EXPECT_THAT(folder_.names(), ::testing::ElementsAre("file"));
}

TEST_F(AtomicFileTest, LeavesNothingIfItIsNotCommitted) {
  folder_.write("file", "before");
  {
    AtomicFile file(folder_.file("file"), "test.write");
    file.write(bytes_of("after"));
  }
  EXPECT_EQ(folder_.read("file"), "before");
  EXPECT_THAT(folder_.names(), ::testing::ElementsAre("file"));
}

TEST_F(AtomicFileTest, TwoOfOneNameDoNotMix) {
  AtomicFile first(folder_.file("file"), "test.write"), second(folder_.file("file"), "test.write");
  first.write(bytes_of("first"));
  second.write(bytes_of("second"));
  second.commit();
  EXPECT_EQ(folder_.read("file"), "second");
  first.commit();
  EXPECT_EQ(folder_.read("file"), "first");
}

TEST_F(AtomicFileTest, ErrorsNameTheCallAndTheFile) {
  EXPECT_THAT([&] { AtomicFile(folder_.file("none/file"), "test.write"); },
              throws_error(ErrorCode::not_found, "[test.write] expected to write file '"));
  folder_.write("text", "");
  EXPECT_THAT([&] { AtomicFile(folder_.file("text/file"), "test.write"); },
              throws_error(ErrorCode::not_found, "Not a directory"));
  std::filesystem::create_directory(folder_.file("taken"));
  AtomicFile file(folder_.file("taken"), "test.write");
  EXPECT_THAT([&] { file.commit(); }, throws_error(ErrorCode::failed_precondition, "a directory"));
}

}  // namespace
}  // namespace cohort
