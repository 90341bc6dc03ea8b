// SPDX-License-Identifier: Apache-2.0
#include "cohort/net/waker.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <limits>

#include "cohort/core/error.h"
#include "cohort/core/system_error.h"

namespace cohort::net {

Waker::Waker() : event_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  COHORT_CHECK(event_.is_open(), code_of_errno(errno, ErrorCode::internal),
               "[net.waker] expected an eventfd, got: ", text_of_errno(errno));
}

void Waker::wake() noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(event_.get(), &one, sizeof(one));
}

void Waker::drain() noexcept {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto size = ::read(event_.get(), &count, sizeof(count));
}

int poll_milliseconds(Deadline deadline) {
  if (deadline.is_infinite()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, std::numeric_limits<int>::max()));
}

}  // namespace cohort::net
