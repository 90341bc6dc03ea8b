// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/run_main.h"

#include <fcntl.h>
#include <unistd.h>

namespace cohort {

void open_standard_streams() noexcept {
  int fd = 0;
  do {
    fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);  // the lowest number that is free
  } while (fd >= 0 && fd <= STDERR_FILENO && ::fcntl(fd, F_SETFD, 0) == 0);
  if (fd > STDERR_FILENO) ::close(fd);
}

}  // namespace cohort
