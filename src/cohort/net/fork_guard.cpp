// SPDX-License-Identifier: Apache-2.0
#include "cohort/net/fork_guard.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <mutex>
#include <vector>

namespace cohort::net {
namespace {

struct KeptSocket {
  int fd;
  dev_t device;
  ino_t inode;
  // A descriptor that was closed may be another file by now.
  bool is_open() const {
    struct stat found {};
    return ::fstat(fd, &found) == 0 && found.st_dev == device && found.st_ino == inode;
  }
};

// Never destroyed, since a fork may come at any time.
struct KeptSockets {
  std::mutex mutex;  // held in fork()
  std::vector<KeptSocket> all;
  std::size_t prunes_at = 64;
};
KeptSockets& kept() {
  static auto* const sockets = new KeptSockets;
  return *sockets;
}

// Only calls that are allowed between fork() and exec.
void replace_in_child() {
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const KeptSocket& socket : kept().all) {
    if (nothing >= 0 && socket.is_open()) ::dup2(nothing, socket.fd);
  }
  if (nothing >= 0) ::close(nothing);
  kept().mutex.unlock();
}

}  // namespace

void keep_from_children(int socket) {
  static const int registered = ::pthread_atfork([] { kept().mutex.lock(); },
                                                 [] { kept().mutex.unlock(); }, replace_in_child);
  struct stat found {};
  if (registered != 0 || ::fstat(socket, &found) != 0) return;
  KeptSockets& sockets = kept();
  const std::lock_guard lock(sockets.mutex);
  sockets.all.push_back({socket, found.st_dev, found.st_ino});
  if (sockets.all.size() < sockets.prunes_at) return;
  std::erase_if(sockets.all, [](const KeptSocket& one) { return !one.is_open(); });
  sockets.prunes_at = 2 * sockets.all.size() + 64;
}

}  // namespace cohort::net
