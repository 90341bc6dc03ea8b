// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/atomic_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

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

// Regression: a process that was stopped just before the rename replaced a newer file.
TEST_F(AtomicFileTest, IsGoneIfALaterOneHasTakenItsTurn) {
  const auto write = [&](const char* name, std::uint64_t order) {
    AtomicFile file(folder_.file(name), "test", order);
    file.write(bytes_of("newer"));
    file.commit();
  };
  AtomicFile older(folder_.file("a"), "test", 1);
  older.write(bytes_of("older"));
  EXPECT_THAT([&] { older.commit([&] { write("a", 2); }); },
              throws_error(ErrorCode::not_found, folder_.file("a")));
  EXPECT_EQ(folder_.read("a"), "newer");
  int checks = 0;
  AtomicFile last(folder_.file("a"), "test", 2);
  EXPECT_THAT(
      [&] {
        last.commit([&] {
          if (++checks == 2) internal::throw_error(ErrorCode::aborted, "given up");
          write("a", 3);
        });
      },
      throws_error(ErrorCode::aborted, "given up"));
}

// Regression: files of other names were removed, and those of a later turn.
TEST_F(AtomicFileTest, RemovesOnlyEarlierPartialFilesOfItsName) {
  AtomicFile same(folder_.file("a"), "test", 2);
  AtomicFile later(folder_.file("a"), "test", 3);
  AtomicFile without_order(folder_.file("a"), "test");
  AtomicFile longer(folder_.file("ab"), "test", 1);
  AtomicFile in_a_partial_name(folder_.file("a.partial-x"), "test", 1);
  const std::vector<std::string> others = {"a.partial-12-3.bak", "a.partial-1-0", "a.partial-x"};
  for (const std::string& other : others) folder_.write(other, "kept");
  AtomicFile file(folder_.file("a"), "test", 2);
  file.commit();
  for (AtomicFile* const other : {&same, &later, &without_order, &longer}) other->commit();
  in_a_partial_name.commit();
  for (const std::string& other : {others[0], others[1]}) EXPECT_EQ(folder_.read(other), "kept");
}

TEST_F(AtomicFileTest, ALinkToNothingIsFollowed) {
  std::filesystem::create_symlink("target", folder_.file("link"));
  AtomicFile file(folder_.file("link"), "test");
  file.write(bytes_of("text"));
  file.commit();
  EXPECT_EQ(folder_.read("target"), "text");
  EXPECT_TRUE(std::filesystem::is_symlink(folder_.file("link")));
}

TEST_F(AtomicFileTest, ALinkIsFollowed) {
  std::filesystem::create_directory(folder_.file("run"));
  folder_.write("run/5", "before");
  std::filesystem::create_symlink("run/5", folder_.file("latest"));
  AtomicFile file(folder_.file("latest"), "test.write");
  file.write(bytes_of("after"));
  file.commit();
  EXPECT_TRUE(std::filesystem::is_symlink(folder_.file("latest")));
  EXPECT_EQ(folder_.read("run/5"), "after");
}

// Regression: a device was replaced by a file.
TEST_F(AtomicFileTest, WhatIsNoFileIsRefused) {
  ASSERT_EQ(::mkfifo(folder_.file("pipe").c_str(), 0600), 0);
  EXPECT_THAT([&] { AtomicFile(folder_.file("pipe"), "test.write"); },
              throws_error(ErrorCode::invalid_argument, "which is a device, a pipe or a socket"));
  EXPECT_TRUE(std::filesystem::is_fifo(folder_.file("pipe")));
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
