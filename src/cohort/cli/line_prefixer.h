// SPDX-License-Identifier: Apache-2.0
// Copies a stream to a file descriptor in whole lines, each with a prefix.
#pragma once

#include <string>
#include <string_view>

namespace cohort::cli {

// Whether the launch is to end. Then output that nobody reads is dropped. Used only from the launch
// loop.
struct StopState {
  int fd = -1;                // can be read when a stop is requested
  bool is_requested = false;  // a request was read from `fd`
  bool is_stuck = false;      // the last wait for a reader of the output timed out
};

// Used only from the launch loop.
class LinePrefixer {
 public:
  // Does not own `fd`. On a terminal each line first clears the current line of the terminal, where
  // another task may have drawn a progress bar.
  LinePrefixer(std::string prefix, int fd, StopState* stop = nullptr);

  void write(std::string_view bytes);
  // Writes the last line if it has no end.
  void finish();
  // The errno of the first write that failed, or 0. Later lines are written nevertheless, because a
  // full disk may have room again.
  int error() const { return error_; }

 private:
  void write_line(std::string_view line);

  std::string prefix_;
  int fd_;
  StopState* stop_;
  std::string rest_;
  int error_ = 0;
};

// Writes everything. After a stop request it writes only what a reader still takes. Returns 0, or
// the errno of a write that failed.
int write_all(int fd, std::string_view bytes, StopState* stop = nullptr);

}  // namespace cohort::cli
