// SPDX-License-Identifier: Apache-2.0
// Sockets that others own, and may close at any time.
#pragma once

#include <sys/types.h>

namespace cohort::net {

// Identifies an open socket: its number may be another file's later, and the number of the inode
// tells. A value type.
class OpenSocket {
 public:
  explicit OpenSocket(int fd);
  int fd() const { return fd_; }
  bool is_open() const { return is(fd_); }
  // Breaks the connection, if it is still open.
  void shut_down() const;

 private:
  bool is(int other) const;

  int fd_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

// In a child of this process that is forked without exec, the descriptor is that of /dev/null.
// Otherwise the child would keep the connection open after the death of its parent, which the other
// processes would then notice only at their deadline, and nobody could listen at the parent's
// address. It may be closed as usual. Thread-safe.
void keep_from_children(int socket);

}  // namespace cohort::net
