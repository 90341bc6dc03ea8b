// SPDX-License-Identifier: Apache-2.0
// Copies a stream to a file descriptor, each line with a prefix, whole lines only.
#pragma once

#include <string>
#include <string_view>

namespace cohort::cli {

// Whether the launch shall end: then output that nobody reads is given up. Used only from the
// launch loop.
struct StopState {
  int fd = -1;                // readable once a stop is requested
  bool is_requested = false;  // was read from it
  bool is_stuck = false;      // the last wait for output was in vain
};

// Used only from the launch loop.
class LinePrefixer {
 public:
  // Does not own `fd`. On a terminal each line first clears the one it stands on, where another
  // task may have drawn a progress bar.
  LinePrefixer(std::string prefix, int fd, StopState* stop = nullptr);

  void write(std::string_view bytes);
  // Writes an unfinished last line.
  void finish();
  // The errno of the first write that failed, or 0. Lines after it are tried all the same: a full
  // disk may have room again.
  int error() const { return error_; }

 private:
  void write_line(std::string_view line);

  std::string prefix_;
  int fd_;
  StopState* stop_;
  std::string rest_;
  int error_ = 0;
};

// Everything, or as much as the other end takes until a stop is requested. Returns 0, or the errno
// of a write that failed.
int write_all(int fd, std::string_view bytes, StopState* stop = nullptr);

}  // namespace cohort::cli
