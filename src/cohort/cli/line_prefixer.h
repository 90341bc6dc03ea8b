// SPDX-License-Identifier: Apache-2.0
// Copies a stream to a file descriptor, each line with a prefix, whole lines only.
#pragma once

#include <string>
#include <string_view>

namespace cohort::cli {

// Used only from the launch loop.
class LinePrefixer {
 public:
  // Does not own `fd`. On a terminal each line first clears the one it stands on, where another
  // task may have drawn a progress bar.
  LinePrefixer(std::string prefix, int fd);

  void write(std::string_view bytes);
  // Writes an unfinished last line.
  void finish();

 private:
  void write_line(std::string_view line);

  std::string prefix_;
  int fd_;
  std::string rest_;
};

// Everything, or as much as the other end takes; failure is no error, for nobody could be told.
void write_all(int fd, std::string_view bytes);

}  // namespace cohort::cli
