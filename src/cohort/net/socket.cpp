// SPDX-License-Identifier: Apache-2.0
#include "cohort/net/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>

#include "cohort/core/error.h"
#include "cohort/core/random.h"
#include "cohort/core/system_error.h"
#include "cohort/net/name_lookup.h"
#include "cohort/net/open_socket.h"

namespace cohort::net {
namespace {

// The deadline for the lookup of a server's own name, which has no caller's deadline; longer than
// name servers take.
constexpr auto kOwnNameTimeout = std::chrono::seconds(60);

[[noreturn]] void fail(const char* call, int error) {
  throw Error(code_of_errno(error, ErrorCode::internal),
              std::string("[net.socket] ") + call + " failed: " + text_of_errno(error));
}

void set_option(int fd, int level, int name, int value) {
  // Failures are ignored: a system that lacks the option only works less well.
  setsockopt(fd, level, name, &value, sizeof(value));
}

// Not open, with errno, if it fails.
FileDescriptor open_socket(const addrinfo& address) {
  return FileDescriptor(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

// The address that `call` gives: getsockname() or getpeername().
std::optional<SocketAddress> address_by(int (*call)(int, sockaddr*, socklen_t*), int fd) {
  SocketAddress address;
  socklen_t size = sizeof address;
  if (call(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return std::nullopt;
  return address;
}

[[noreturn]] void fail_listen(const std::string& address, int error) {
  if (error == EADDRINUSE) {
    // This is no mistake of the configuration: a task that restarts finds its port taken if its
    // predecessor has not ended yet, or if another program was quicker. Later the port may be free.
    throw Error(
        ErrorCode::resource_exhausted,
        "[net.listen] expected a free port, got " + address +
            ", which is taken, since another process listens there; if that is a task of this "
            "job, two have the same index in TF_CONFIG, or their lists of addresses have "
            "different orders: give each task an index of its own, and all the same cluster; "
            "otherwise stop that process, or give the task another address");
  }
  if (error == EADDRNOTAVAIL) {
    throw Error(
        ErrorCode::invalid_argument,
        "[net.listen] expected an address of this machine, got " + address + kOwnAddressRemedy);
  }
  if (error == EACCES) {
    throw Error(ErrorCode::permission_denied,
                "[net.listen] expected a port this user may use, got " + address +
                    "; choose one above 1023");
  }
  fail("bind", error);
}

int port_of(const sockaddr* address) {
  return ntohs(address->sa_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(address)->sin_port);
}

std::shared_ptr<const addrinfo> resolve_to_listen(const HostPort& where,
                                                  const std::function<bool()>& should_stop) {
  return look_up_own(where, Deadline::after(kOwnNameTimeout), &::getaddrinfo, should_stop);
}

// Returns 0, or the errno of the failure to listen.
int listen_once(const addrinfo& address, FileDescriptor& fd) {
  fd = open_socket(address);
  if (!fd.is_open()) return errno;  // IPv6 may be off
  // The port may be reserved by a socket that does not listen, or that of a task that just ended.
  set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  keep_from_children(fd.get());
  if (bind(fd.get(), address.ai_addr, address.ai_addrlen) != 0) return errno;
  return listen(fd.get(), SOMAXCONN) == 0 ? 0 : errno;
}

// Listens on all addresses of a name that this machine has. Fails if another program has one of
// them, since callers would then reach either program.
std::vector<FileDescriptor> listen_on_each(const addrinfo& addresses, const HostPort& where) {
  std::vector<FileDescriptor> listening;
  int problem = 0;
  for (const addrinfo* one = &addresses; one != nullptr; one = one->ai_next) {
    FileDescriptor fd;
    const int error = listen_once(*one, fd);
    if (error == EADDRINUSE) fail_listen(where.to_string(), error);
    if (error == 0) listening.push_back(std::move(fd));
    if (problem == 0) problem = error;
  }
  if (listening.empty()) fail_listen(where.to_string(), problem);
  return listening;
}

std::optional<HostPort> number_text(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (getnameinfo(address, size, host.data(), host.size(), port.data(), port.size(),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return std::nullopt;
  }
  return HostPort{host.data(), port.data()};
}

// KeepAlive, in the order of its members.
std::array<std::atomic<int>, 3> keep_alive_of_all{KeepAlive().idle, KeepAlive().interval,
                                                  KeepAlive().count};

// Whether the socket is connected to itself. The kernel joins both ends if it happens to choose the
// port at which nobody listens as the port of the connection.
bool is_self_connected(int fd) {
  const auto local = SocketAddress::local(fd);
  const auto remote = SocketAddress::remote(fd);
  return local && remote && address_hash(local->get()) == address_hash(remote->get());
}

}  // namespace

FileDescriptor listen_on(std::string& address, const std::function<bool()>& should_stop) {
  HostPort where = parse_address(address);
  FileDescriptor fd;
  const int error = listen_once(*resolve_to_listen(where, should_stop), fd);
  if (!fd.is_open()) fail("socket", error);
  if (error != 0) fail_listen(where.to_string(), error);
  const auto local = SocketAddress::local(fd.get());
  if (!local) fail("getsockname", errno);
  where.port = std::to_string(port_of(local->get()));
  address = where.to_string();
  return fd;
}

void check_all_free(const addrinfo& addresses, const HostPort& where) {
  listen_on_each(addresses, where);
}

std::vector<FileDescriptor> listen_on_all(std::string& address,
                                          const std::function<bool()>& should_stop) {
  const HostPort where = parse_address(address);
  if (where.port != "0") return listen_on_each(*resolve_to_listen(where, should_stop), where);
  // The port of the first address is used for the others.
  std::vector<FileDescriptor> listening;
  listening.push_back(listen_on(address, should_stop));
  return listening;
}

int start_connecting(const addrinfo& address, FileDescriptor& socket) {
  socket = open_socket(address);
  if (!socket.is_open()) return errno;
  if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0)
    return is_self_connected(socket.get()) ? ECONNREFUSED : 0;
  return errno == EINTR ? EINPROGRESS : errno;
}

int connected_error(int fd) {
  int error = 0;
  socklen_t size = sizeof(error);
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  if (error == 0 && is_self_connected(fd)) return ECONNREFUSED;
  return error;
}

void tune(int fd, Unacknowledged limit) {
  keep_from_children(fd);
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, keep_alive_of_all[0]);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, keep_alive_of_all[1]);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, keep_alive_of_all[2]);
  if (limit == Unacknowledged::for_a_minute) set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 60'000);
}

HostPort numeric_address(const addrinfo& address) {
  const auto number = number_text(address.ai_addr, address.ai_addrlen);
  COHORT_ASSERT(number.has_value());
  return *number;
}

std::string remote_address(int fd) {
  const auto address = SocketAddress::remote(fd);
  if (!address) return "a peer that left";
  const auto number = number_text(address->get(), sizeof(SocketAddress));
  return number ? number->to_string() : "a peer";
}

std::optional<SocketAddress> SocketAddress::local(int fd) { return address_by(&::getsockname, fd); }

std::optional<SocketAddress> SocketAddress::remote(int fd) {
  return address_by(&::getpeername, fd);
}

std::optional<in6_addr> ipv6_address(const sockaddr* address) {
  if (address == nullptr) return std::nullopt;
  if (address->sa_family == AF_INET6)
    return reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  if (address->sa_family != AF_INET) return std::nullopt;
  in6_addr mapped{};
  mapped.s6_addr[10] = mapped.s6_addr[11] = 0xff;
  std::memcpy(&mapped.s6_addr[12], &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, 4);
  return mapped;
}

std::uint64_t address_hash(const sockaddr* address) {
  const std::optional<in6_addr> number = ipv6_address(address);
  if (!number) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(&*number), sizeof *number);
  return mix_seed(mix_seed(0, bytes), static_cast<std::uint64_t>(port_of(address)));
}

std::vector<std::uint64_t> bound_addresses(const std::vector<FileDescriptor>& sockets) {
  std::vector<std::uint64_t> hashes;
  for (const FileDescriptor& socket : sockets) {
    if (const auto local = SocketAddress::local(socket.get()))
      hashes.push_back(address_hash(local->get()));
  }
  return hashes;
}

void set_keep_alive(const KeepAlive& keep_alive) {
  keep_alive_of_all[0] = keep_alive.idle;
  keep_alive_of_all[1] = keep_alive.interval;
  keep_alive_of_all[2] = keep_alive.count;
}

}  // namespace cohort::net
