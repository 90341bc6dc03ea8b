// SPDX-License-Identifier: Apache-2.0
#include "cohort/net/open_socket.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <mutex>
#include <vector>

#include "cohort/core/amortized_sweep.h"
#include "cohort/core/file_descriptor.h"

namespace cohort::net {
namespace {

// Never destroyed, since a fork may come at any time.
struct KeptSockets {
  std::mutex mutex;  // held in fork()
  std::vector<OpenSocket> all;
  internal::AmortizedSweep sweep;
};
KeptSockets& kept() {
  static auto* const sockets = new KeptSockets;
  return *sockets;
}

// Only calls that are allowed between fork() and exec.
void replace_in_child() {
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const OpenSocket& socket : kept().all) {
    if (nothing >= 0 && socket.is_open()) ::dup2(nothing, socket.fd());
  }
  if (nothing >= 0) ::close(nothing);
  kept().mutex.unlock();
}

}  // namespace

OpenSocket::OpenSocket(int fd) : fd_(fd) {
  struct stat found {};
  if (::fstat(fd, &found) != 0) return;
  device_ = found.st_dev;
  inode_ = found.st_ino;
}

bool OpenSocket::is(int other) const {
  struct stat found {};
  return ::fstat(other, &found) == 0 && S_ISSOCK(found.st_mode) && found.st_dev == device_ &&
         found.st_ino == inode_;
}

void OpenSocket::shut_down() const {
  if (!is_open()) return;
  // The owner may close it just now. The duplicate cannot become another file.
  const FileDescriptor same(::fcntl(fd_, F_DUPFD_CLOEXEC, 0));
  if (same.is_open()) {
    if (is(same.get())) ::shutdown(same.get(), SHUT_RDWR);
  } else {
    ::shutdown(fd_, SHUT_RDWR);  // there are no descriptors left, so none is opened meanwhile
  }
}

void keep_from_children(int socket) {
  static const int registered = ::pthread_atfork([] { kept().mutex.lock(); },
                                                 [] { kept().mutex.unlock(); }, replace_in_child);
  const OpenSocket open(socket);
  if (registered != 0 || !open.is_open()) return;
  KeptSockets& sockets = kept();
  const std::lock_guard lock(sockets.mutex);
  sockets.sweep(sockets.all, [](const OpenSocket& one) { return !one.is_open(); });
  sockets.all.push_back(open);
}

}  // namespace cohort::net
