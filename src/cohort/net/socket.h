// SPDX-License-Identifier: Apache-2.0
// TCP sockets between processes of a job: listening, connecting, addresses. All are non-blocking,
// closed on exec, and kept from processes that the program forks.
#pragma once

#include <netdb.h>
#include <netinet/in.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cohort/core/clock.h"
#include "cohort/core/file_descriptor.h"
#include "cohort/net/host_port.h"

namespace cohort::net {

// Listens on exactly this address, and writes the chosen port into `address`. Throws
// resource_exhausted if the port is taken, since it may be free later; invalid_argument if the
// address is not this machine's, and the errors of look_up_own().
FileDescriptor listen_on(std::string& address, const std::function<bool()>& should_stop = {});
// The same for every address of the name that this machine has, with one port.
std::vector<FileDescriptor> listen_on_all(std::string& address,
                                          const std::function<bool()>& should_stop = {});
// Throws what listen_on() would throw, without keeping the addresses; resource_exhausted also if
// only one of them is taken. `where` is for messages.
void check_all_free(const addrinfo& addresses, const HostPort& where);

// Starts to connect. Returns 0 or EINPROGRESS, or why it failed at once.
int start_connecting(const addrinfo& address, FileDescriptor& socket);
// Whether a started connection succeeded: 0 or why it failed. The socket must be ready to write.
int connected_error(int fd);

// How long the other end may leave bytes unacknowledged before the system ends the connection. With
// a limit, a peer that lives but reads nothing for so long is taken for lost, too. So the limit is
// for peers with a thread that only reads; others need a second, idle connection, on which
// keep-alive finds a lost host (docs/decisions/0100-the-idle-connection-tells-a-lost-host.md).
enum class Unacknowledged : std::uint8_t { no_limit, for_a_minute };
// Disables delays for small frames, and makes the loss of a host noticed within a minute; while
// bytes are unacknowledged, only with a limit for them.
void tune(int fd, Unacknowledged limit);

// The system asks the host at the other end of a connection that was idle for `idle` seconds, and
// again every `interval` seconds. It takes it for lost when `count` questions had no answer.
struct KeepAlive {
  int idle = 15;
  int interval = 5;
  int count = 4;
};
// For tests: of the connections that are made from now on. Thread-safe.
void set_keep_alive(const KeepAlive& keep_alive);

// One found address as numbers.
HostPort numeric_address(const addrinfo& address);
// The other end's address: "127.0.0.1:51344".
std::string remote_address(int fd);
// The address of one end of a socket, with its port. A value type.
class SocketAddress {
 public:
  // nullopt if the socket has none; the reason is in errno.
  static std::optional<SocketAddress> local(int fd);
  static std::optional<SocketAddress> remote(int fd);
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }

 private:
  sockaddr_storage storage_{};
};
// An IPv4 address is mapped to IPv6, as a socket for both has it; nullopt for other families.
std::optional<in6_addr> ipv6_address(const sockaddr* address);
// The hash of that address and its port; equal in all processes. 0 if there is none.
std::uint64_t address_hash(const sockaddr* address);
// The addresses to which these sockets are bound.
std::vector<std::uint64_t> bound_addresses(const std::vector<FileDescriptor>& sockets);

}  // namespace cohort::net
