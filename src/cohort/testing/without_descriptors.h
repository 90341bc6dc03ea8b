// SPDX-License-Identifier: Apache-2.0
// A process that cannot open a file descriptor, in tests.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstddef>
#include <vector>

#include "cohort/core/file_descriptor.h"

namespace cohort::testing {

// While it exists, this process can open no further descriptors, or only a few; its open ones stay.
// Used only from one thread.
class WithoutDescriptors {
 public:
  // `room`: how many further ones it can open.
  explicit WithoutDescriptors(std::size_t room = 0) {
    // Open descriptors have gaps between them, so the last of `room` new ones says the limit.
    std::vector<FileDescriptor> free;
    while (free.size() < room) free.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    rlimit low = before_;
    low.rlim_cur = free.empty() ? 0 : static_cast<rlim_t>(free.back().get()) + 1;
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  }
  ~WithoutDescriptors() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }
  WithoutDescriptors(const WithoutDescriptors&) = delete;
  WithoutDescriptors& operator=(const WithoutDescriptors&) = delete;

 private:
  rlimit before_{};
};

}  // namespace cohort::testing
