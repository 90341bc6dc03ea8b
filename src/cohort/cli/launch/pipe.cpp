// SPDX-License-Identifier: Apache-2.0
#include "cohort/cli/launch/pipe.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "cohort/core/error.h"
#include "cohort/core/system_error.h"

namespace cohort::cli {

Pipe::Pipe() {
  int fds[2];
  COHORT_CHECK(::pipe2(fds, O_CLOEXEC) == 0, ErrorCode::resource_exhausted,
               "[cli.launch] expected a pipe, got: ", text_of_errno(errno));
  reader_ = FileDescriptor(fds[0]);
  writer_ = FileDescriptor(fds[1]);
}

void Pipe::make_reader_nonblocking() { ::fcntl(reader(), F_SETFL, O_NONBLOCK); }

void Pipe::make_writer_nonblocking() { ::fcntl(writer(), F_SETFL, O_NONBLOCK); }

}  // namespace cohort::cli
