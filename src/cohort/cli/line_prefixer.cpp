// SPDX-License-Identifier: Apache-2.0
#include "cohort/cli/line_prefixer.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

namespace cohort::cli {
namespace {

// A line without an end is cut here, so that memory stays bounded.
constexpr std::size_t kMaxLineBytes = 64 << 10;

}  // namespace

void write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {
      pollfd ready{fd, POLLOUT, 0};
      ::poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      return;
    }
  }
}

LinePrefixer::LinePrefixer(std::string prefix, int fd)
    : prefix_((::isatty(fd) ? "\r\x1b[K" : "") + std::move(prefix)), fd_(fd) {}

void LinePrefixer::write(std::string_view bytes) {
  for (std::size_t end; (end = bytes.find('\n')) != std::string_view::npos;
       bytes.remove_prefix(end + 1)) {
    rest_ += bytes.substr(0, end);
    write_line(rest_);
    rest_.clear();
  }
  rest_ += bytes;
  if (rest_.size() >= kMaxLineBytes) finish();
}

void LinePrefixer::finish() {
  if (!rest_.empty()) write_line(rest_);
  rest_.clear();
}

void LinePrefixer::write_line(std::string_view line) {
  // One write a line, so that lines of several tasks do not mix.
  std::string whole = prefix_;
  whole += line;
  whole += '\n';
  write_all(fd_, whole);
}

}  // namespace cohort::cli
