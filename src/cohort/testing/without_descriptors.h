// SPDX-License-Identifier: Apache-2.0
// A process that cannot open a file descriptor, in tests.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace cohort::testing {

// While it exists, this process can open no further descriptor; its open ones stay. Used only from
// one thread.
class WithoutDescriptors {
 public:
  WithoutDescriptors() {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    rlimit none = before_;
    none.rlim_cur = 0;
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  }
  ~WithoutDescriptors() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }
  WithoutDescriptors(const WithoutDescriptors&) = delete;
  WithoutDescriptors& operator=(const WithoutDescriptors&) = delete;

 private:
  rlimit before_{};
};

}  // namespace cohort::testing
