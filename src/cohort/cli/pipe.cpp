// SPDX-License-Identifier: Apache-2.0
#include "cohort/cli/internal/pipe.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "cohort/core/detail/system_error.h"
#include "cohort/core/error.h"

namespace cohort::cli {

Pipe::Pipe() {
  int fds[2];
  COHORT_CHECK(::pipe2(fds, O_CLOEXEC) == 0, ErrorCode::resource_exhausted,
               "[cli.launch] expected a pipe, got: ", text_of_errno(errno));
  reader_ = fds[0];
  writer_ = fds[1];
}

Pipe::~Pipe() {
  close_writer();
  if (reader_ >= 0) ::close(reader_);
}

void Pipe::close_writer() {
  if (writer_ >= 0) ::close(std::exchange(writer_, -1));
}

int Pipe::release_reader() { return std::exchange(reader_, -1); }

void Pipe::make_reader_nonblocking() { ::fcntl(reader_, F_SETFL, O_NONBLOCK); }

void Pipe::make_writer_nonblocking() { ::fcntl(writer_, F_SETFL, O_NONBLOCK); }

}  // namespace cohort::cli
