// SPDX-License-Identifier: Apache-2.0
// Copies a stream to a file descriptor in whole lines, each with a prefix. A line that ends with a
// carriage return, as a progress bar writes it, counts as a line.
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

  // After a carriage return the bytes are written at once, although their line may have no end yet:
  // a progress bar may begin its lines with the carriage return.
  void write(std::string_view bytes);
  // Writes the last line if it has no end.
  void finish();
  // The errno of the first write that failed, or 0. Later lines are written nevertheless, because a
  // full disk may have room again.
  int error() const { return error_; }

 private:
  void end_line();
  void return_carriage();
  void show(std::string_view line);
  void write_line(std::string_view line, std::string_view end = "\n");

  const bool is_terminal_;
  std::string prefix_;
  int fd_;
  StopState* stop_;
  std::string rest_;
  // The line has had a carriage return, and the piece of it that was written last. On a terminal
  // this piece stands there without a line feed.
  bool is_redrawn_ = false;
  std::string shown_;
  int error_ = 0;
};

}  // namespace cohort::cli
