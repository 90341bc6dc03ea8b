// SPDX-License-Identifier: Apache-2.0
// A pipe whose destructor closes both ends.
#pragma once

#include <utility>

#include "cohort/core/file_descriptor.h"

namespace cohort::cli {

// Both ends of a pipe; programs that this process starts do not inherit them. Thread-compatible.
class Pipe {
 public:
  Pipe();

  int reader() const { return reader_.get(); }
  int writer() const { return writer_.get(); }
  void close_writer() { writer_ = FileDescriptor(); }
  FileDescriptor take_reader() { return std::move(reader_); }
  void make_reader_nonblocking();
  void make_writer_nonblocking();

 private:
  FileDescriptor reader_;
  FileDescriptor writer_;
};

}  // namespace cohort::cli
