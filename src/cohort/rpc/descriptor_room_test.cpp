// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/detail/descriptor_room.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <vector>

#include "cohort/core/detail/file_descriptor.h"
#include "cohort/testing/throws_error.h"

namespace cohort::rpc {
namespace {

// While it exists, this process can open only `count` further descriptors.
class RoomFor {
 public:
  explicit RoomFor(rlim_t count) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    // Open descriptors have gaps between them, so the last of `count` new ones says the limit.
    std::vector<FileDescriptor> free;
    for (rlim_t i = 0; i < count; ++i) free.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    rlimit low = before_;
    low.rlim_cur = static_cast<rlim_t>(free.back().get()) + 1;
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  }
  ~RoomFor() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }
  RoomFor(const RoomFor&) = delete;
  RoomFor& operator=(const RoomFor&) = delete;

 private:
  rlimit before_{};
};

TEST(DescriptorRoom, IsThereAndStaysThere) {
  const RoomFor room(3);
  check_descriptor_room(3);
  check_descriptor_room(3);
}

// gRPC aborted the process, and a server could not accept its coordinator's connections.
TEST(DescriptorRoom, TooLittleNamesTheLimit) {
  const RoomFor room(2);
  const auto check = [] { check_descriptor_room(3); };
  EXPECT_THAT(check, testing::throws_error(ErrorCode::resource_exhausted, "room for 3 more"));
  EXPECT_THAT(check, testing::throws_error(ErrorCode::resource_exhausted, "ulimit -n"));
}

}  // namespace
}  // namespace cohort::rpc
