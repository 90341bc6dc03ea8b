// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/file_fingerprint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace cohort {
namespace {

namespace fs = std::filesystem;

class FileFingerprintTest : public ::testing::Test {
 protected:
  FileFingerprintTest() {
    std::string pattern = ::testing::TempDir() + "fingerprint_XXXXXX";
    directory = ::mkdtemp(pattern.data());
  }
  ~FileFingerprintTest() override {
    std::error_code ignored;
    fs::remove_all(directory, ignored);
  }
  std::string write(const std::string& name, const std::string& bytes) const {
    const std::string path = directory + "/" + name;
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    return path;
  }
  static FileFingerprint of(const std::string& path) { return fingerprint_of("data", path); }

  std::string directory;
};

TEST_F(FileFingerprintTest, ACopyWithAnotherTimeIsTheSame) {
  const std::string path = write("a", "some rows");
  const std::string copy = write("b", "some rows");
  fs::last_write_time(copy, fs::last_write_time(path) - std::chrono::hours(1));
  EXPECT_NE(of(path).modified_ns, of(copy).modified_ns);
  EXPECT_EQ(difference(of(path), of(copy)), "");
}

TEST_F(FileFingerprintTest, AnotherSizeIsNamed) {
  const FileFingerprint before = of(write("a", "some rows"));
  EXPECT_EQ(difference(before, of(write("a", "some more rows"))), "expected 9 bytes, got 14 bytes");
}

TEST_F(FileFingerprintTest, OneOtherByteOfASmallFileIsFoundAlsoWithTheSameTime) {
  std::string bytes(8 << 20, 'x');
  const std::string path = write("a", bytes);
  const auto time = fs::last_write_time(path);
  const FileFingerprint before = of(path);
  bytes[5'000'001] = 'y';
  write("a", bytes);
  fs::last_write_time(path, time);
  EXPECT_THAT(difference(before, of(path)), ::testing::HasSubstr("other bytes"));
}

TEST_F(FileFingerprintTest, TheFirstAndTheLastByteOfALargeFileCount) {
  std::string bytes((8 << 20) + 12'345, 'x');
  EXPECT_FALSE(covers_whole_file(bytes.size()));
  const FileFingerprint before = of(write("a", bytes));
  EXPECT_EQ(difference(before, of(write("a", bytes))), "");
  bytes.back() = 'y';
  EXPECT_NE(difference(before, of(write("a", bytes))), "");
  bytes.back() = 'x';
  bytes.front() = 'y';
  EXPECT_NE(difference(before, of(write("a", bytes))), "");
}

TEST_F(FileFingerprintTest, AFileThatCannotBeReadIsMissing) {
  const std::string path = write("a", "rows");
  EXPECT_TRUE(of(directory + "/none").is_missing);
  EXPECT_TRUE(of(directory).is_missing) << "a directory";
  ASSERT_EQ(::mkfifo((directory + "/pipe").c_str(), 0600), 0);
  EXPECT_TRUE(of(directory + "/pipe").is_missing);
  EXPECT_EQ(difference(of(path), of(directory + "/none")),
            "expected 4 bytes, got no file that can be read");
  EXPECT_EQ(difference(of(directory + "/none"), of(path)),
            "expected no file that can be read, got 4 bytes");
}

TEST_F(FileFingerprintTest, WithoutAChecksumOnlyTheSizeIsCompared) {
  const FileFingerprint size = size_fingerprint_of("data", write("a", "rows"));
  EXPECT_FALSE(size.checksum.has_value());
  EXPECT_EQ(size.size_bytes, 4U);
  EXPECT_EQ(difference(size, of(write("a", "cows"))), "");
  EXPECT_NE(difference(size, of(write("a", "mores"))), "");
}

}  // namespace
}  // namespace cohort
