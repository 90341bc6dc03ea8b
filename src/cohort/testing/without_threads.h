// SPDX-License-Identifier: Apache-2.0
// A process that cannot start a thread, in tests.
#pragma once

#include <gtest/gtest.h>
#include <pthread.h>

#include <cstddef>

namespace cohort::testing {

// While it exists, new threads ask for more stack than there is memory. Used only from one thread.
class WithoutThreads {
 public:
  WithoutThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t huge;
    pthread_attr_init(&huge);
    pthread_attr_setstacksize(&huge, std::size_t{1} << 50);
    EXPECT_EQ(pthread_setattr_default_np(&huge), 0);
  }
  ~WithoutThreads() { pthread_setattr_default_np(&before_); }
  WithoutThreads(const WithoutThreads&) = delete;
  WithoutThreads& operator=(const WithoutThreads&) = delete;

 private:
  pthread_attr_t before_;
};

}  // namespace cohort::testing
