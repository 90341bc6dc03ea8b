// SPDX-License-Identifier: Apache-2.0
#include "cohort/net/shared_file.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cohort/core/error.h"
#include "cohort/testing/throws_error.h"

namespace cohort::net {
namespace {

using testing::throws_error;

constexpr const char* kOtherwise = "take the bus";

class SharedFileTest : public ::testing::Test {
 protected:
  const std::uint64_t bytes = 2 * page_bytes();
  const SharedFile file = SharedFile::create(bytes, kOtherwise);

  // As another process opens it.
  static SharedFile opened(int descriptor, std::uint64_t bytes) {
    return SharedFile::open(::getpid(), descriptor, bytes, kOtherwise);
  }
};

TEST_F(SharedFileTest, BothSeeTheSameMemory) {
  const SharedFile other = opened(file.descriptor(), bytes);
  file.reserve(0, bytes);
  const Mapping mine = file.map(0, bytes);
  const Mapping theirs = other.map(page_bytes(), page_bytes());
  mine.data()[page_bytes() + 5] = std::byte{7};
  EXPECT_EQ(theirs.data()[5], std::byte{7});
  other.clear(page_bytes(), page_bytes());
  EXPECT_EQ(mine.data()[page_bytes() + 5], std::byte{0});
}

TEST_F(SharedFileTest, AnotherFileIsRefusedWithTheRemedyOfTheCaller) {
  const auto refuses = throws_error(ErrorCode::failed_precondition, "or take the bus");
  EXPECT_THAT([&] { opened(file.descriptor(), bytes + 1); }, refuses);
  EXPECT_THAT([&] { opened(-1, bytes); }, refuses);
  // Its size may change, which ends those that read the rest.
  const FileDescriptor unsealed(::memfd_create("unsealed", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(unsealed.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_THAT([&] { opened(unsealed.get(), bytes); }, refuses);
}

TEST_F(SharedFileTest, ItsSizeStaysAsItIs) {
  EXPECT_NE(::ftruncate(file.descriptor(), 1), 0);
  EXPECT_NE(::ftruncate(file.descriptor(), static_cast<off_t>(2 * bytes)), 0);
}

}  // namespace
}  // namespace cohort::net
