// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/write_behind.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <vector>

#include "cohort/core/file_descriptor.h"
#include "cohort/testing/temporary_folder.h"

namespace cohort {
namespace {

class FileOf64MiB : public ::testing::Test {
 protected:
  static constexpr std::size_t kBytes = std::size_t{64} << 20;

  void write(std::size_t step) {
    WriteBehind behind;
    const std::vector<std::byte> bytes(step, std::byte{7});
    for (std::size_t at = 0; at < kBytes; at += step)
      ASSERT_EQ(behind.write(file_.get(), at, bytes), 0);
  }
  std::size_t bytes_in_memory() const {
    void* const mapped = ::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, file_.get(), 0);
    const auto page = static_cast<std::size_t>(::getpagesize());
    std::vector<unsigned char> pages(kBytes / page);
    EXPECT_EQ(::mincore(mapped, kBytes, pages.data()), 0);
    ::munmap(mapped, kBytes);
    return page * static_cast<std::size_t>(std::ranges::count_if(
                      pages, [](unsigned char is_there) { return (is_there & 1) != 0; }));
  }

  const testing::TemporaryFolder folder_;
  const FileDescriptor file_{::open(folder_.file("file").c_str(), O_RDWR | O_CREAT, 0666)};
};

TEST_F(FileOf64MiB, LeavesMemoryWhileItIsWritten) {
  struct statfs system {};
  ASSERT_EQ(::fstatfs(file_.get(), &system), 0);
  if (system.f_type == TMPFS_MAGIC) GTEST_SKIP() << "this file system is memory";
  for (const std::size_t step : {std::size_t{1} << 16, std::size_t{1} << 23, kBytes}) {
    write(step);
    EXPECT_LE(bytes_in_memory(), std::size_t{40} << 20) << step;
  }
}

TEST(WriteBehind, ReturnsTheNumberOfAnError) {
  const std::vector<std::byte> bytes(10);
  EXPECT_EQ(WriteBehind().write(-1, 0, bytes), EBADF);
  const FileDescriptor full(::open("/dev/full", O_WRONLY));
  EXPECT_EQ(WriteBehind().write(full.get(), 0, bytes), ENOSPC);
}

TEST(WriteBehind, WritesWhatHasNoDisk) {
  const FileDescriptor none(::open("/dev/null", O_WRONLY));
  EXPECT_EQ(WriteBehind().write(none.get(), 0, std::vector<std::byte>(std::size_t{64} << 20)), 0);
}

}  // namespace
}  // namespace cohort
