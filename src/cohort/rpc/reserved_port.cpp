// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/reserved_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/system_error.h"

namespace cohort::rpc {
namespace {

// A socket of 127.0.0.1 that is bound and does not listen. On Linux two sockets with SO_REUSEADDR
// may be bound to one port as long as neither listens, and the first that listens gets it; a search
// for any free port skips bound ports.
FileDescriptor bind_loopback(std::uint16_t port) {
  FileDescriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.is_open()) return fd;
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return {};
  return fd;
}

}  // namespace

ReservedPort::ReservedPort() {
  FileDescriptor fd = bind_loopback(0);
  sockaddr_in address{};
  socklen_t size = sizeof address;
  const bool is_bound =
      fd.is_open() && ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0;
  COHORT_CHECK(is_bound, ErrorCode::resource_exhausted,
               "[rpc.reserve_port] expected a free port on 127.0.0.1, got: ", text_of_errno(errno));
  number_ = ntohs(address.sin_port);
  fd_ = std::move(fd);
}

bool ReservedPort::has_listener() const {
  return !bind_loopback(number_).is_open() && errno == EADDRINUSE;
}

}  // namespace cohort::rpc
