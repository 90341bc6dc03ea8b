// SPDX-License-Identifier: Apache-2.0
// A pipe whose destructor closes both ends.
#pragma once

namespace cohort::cli {

// Both ends of a pipe; programs that this process starts do not inherit them. Thread-compatible.
class Pipe {
 public:
  Pipe();
  ~Pipe();
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  int reader() const { return reader_; }
  int writer() const { return writer_; }
  void close_writer();
  // Returns the reading end, which the caller must close.
  int release_reader();
  void make_reader_nonblocking();
  void make_writer_nonblocking();

 private:
  int reader_ = -1;
  int writer_ = -1;
};

}  // namespace cohort::cli
