// SPDX-License-Identifier: Apache-2.0
#include "cohort/cli/line_prefixer.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>

namespace cohort::cli {
namespace {

// A longer line is written in parts, so that the memory for it is bounded.
constexpr std::size_t kMaxLineBytes = 64 << 10;

// How long to wait for a reader after a stop request. One that still reads takes some bytes in this
// time.
constexpr int kLastWaitMilliseconds = 200;

int timeout_of(const StopState* stop) {
  if (stop == nullptr || !stop->is_requested) return -1;
  return stop->is_stuck ? 0 : kLastWaitMilliseconds;
}

// Waits until a write would not block. Returns false if a stop is requested meanwhile, or if one
// was requested before and no reader comes in time.
bool can_write(int fd, StopState* stop) {
  const int stop_fd = stop == nullptr ? -1 : stop->fd;
  std::array<pollfd, 2> events{pollfd{fd, POLLOUT, 0}, pollfd{stop_fd, POLLIN, 0}};
  const bool is_told = ::poll(events.data(), events.size(), timeout_of(stop)) < 0;
  const bool is_ready = is_told || events[0].revents != 0;
  if (stop != nullptr) stop->is_stuck = !is_ready;
  return is_ready;
}

// Writes everything. After a stop request it writes only what a reader still takes. Returns 0, or
// the errno of a write that failed.
int write_all(int fd, std::string_view bytes, StopState* stop) {
  while (!bytes.empty() && can_write(fd, stop)) {
    // If a blocking descriptor can be written at all, it takes this many bytes at once.
    const ssize_t written =
        ::write(fd, bytes.data(), std::min<std::size_t>(bytes.size(), PIPE_BUF));
    if (written >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EAGAIN && errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace

LinePrefixer::LinePrefixer(std::string prefix, int fd, StopState* stop)
    : is_terminal_(::isatty(fd) == 1),
      prefix_((is_terminal_ ? "\r\x1b[K" : "") + std::move(prefix)),
      fd_(fd),
      stop_(stop) {}

void LinePrefixer::write(std::string_view bytes) {
  for (std::size_t end; (end = bytes.find_first_of("\n\r")) != std::string_view::npos;
       bytes.remove_prefix(end + 1)) {
    rest_ += bytes.substr(0, end);
    bytes[end] == '\n' ? end_line() : return_carriage();
  }
  rest_ += bytes;
  if (rest_.size() >= kMaxLineBytes) finish();
  if (!is_redrawn_ || rest_.empty()) return;
  show(rest_);
  if (!is_terminal_) rest_.clear();  // what follows in this line is written as another one
}

void LinePrefixer::finish() {
  if (!rest_.empty() || (is_terminal_ && !shown_.empty())) end_line();
}

void LinePrefixer::end_line() {
  // The last piece of a redrawn line has been written; a terminal still needs the line feed.
  if (rest_.empty() && is_redrawn_ && !shown_.empty()) {
    if (is_terminal_) write_line(shown_);
  } else {
    write_line(rest_);
  }
  rest_.clear();
  shown_.clear();
  is_redrawn_ = false;
}

void LinePrefixer::return_carriage() {
  is_redrawn_ = true;
  if (!rest_.empty()) show(rest_);
  rest_.clear();
}

// Writes a piece of a line that may be drawn again: on a terminal over the last one, otherwise as a
// line of its own.
void LinePrefixer::show(std::string_view line) {
  if (is_terminal_ && line == shown_) return;
  write_line(line, is_terminal_ ? "" : "\n");
  shown_ = line;
}

void LinePrefixer::write_line(std::string_view line, std::string_view end) {
  // Each line is one write, unless it is very long, so that lines of several tasks do not mix.
  std::string whole = prefix_;
  whole += line;
  whole += end;
  const int error = write_all(fd_, whole, stop_);
  if (error_ == 0) error_ = error;
}

}  // namespace cohort::cli
