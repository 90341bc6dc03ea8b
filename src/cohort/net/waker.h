// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cohort/core/clock.h"
#include "cohort/core/file_descriptor.h"

namespace cohort::net {

// Wakes a thread that polls. Thread-safe.
class Waker {
 public:
  // Throws resource_exhausted if the process has no descriptor left.
  Waker();
  int fd() const { return event_.get(); }
  void wake() noexcept;
  void drain() noexcept;

 private:
  FileDescriptor event_;
};

// The timeout for poll(), rounded up and at least 0; -1 for none.
int poll_milliseconds(Deadline deadline);

}  // namespace cohort::net
