// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/sockets/socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>

#include "cohort/core/system_error.h"
#include "cohort/rpc/refusal.h"
#include "cohort/rpc/sockets/name_lookup.h"

namespace cohort::rpc::internal {
namespace {

using AddressList = std::shared_ptr<const addrinfo>;

// The deadline for the lookup of a server's own name, which has no caller's deadline; longer than
// name servers take.
constexpr auto kOwnNameTimeout = std::chrono::seconds(60);

[[noreturn]] void fail(const char* call, int error) {
  throw Error(code_of_errno(error, ErrorCode::internal),
              std::string("[rpc.socket] ") + call + " failed: " + text_of_errno(error));
}

void set_option(int fd, int level, int name, int value) {
  // Failures are ignored: a system that lacks the option only works less well.
  setsockopt(fd, level, name, &value, sizeof(value));
}

FileDescriptor open_socket(int family) {
  FileDescriptor fd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.is_open()) fail("socket", errno);
  return fd;
}

[[noreturn]] void fail_listen(const std::string& address, int error) {
  if (error == EADDRINUSE) {
    throw Error(ErrorCode::already_exists,
                "[rpc.listen] expected a free port, got " + address +
                    ", which is taken; end the process that holds it or choose another");
  }
  if (error == EADDRNOTAVAIL) {
    throw Error(ErrorCode::invalid_argument,
                "[rpc.listen] expected an address of this machine, got " + address);
  }
  if (error == EACCES) {
    throw Error(ErrorCode::permission_denied,
                "[rpc.listen] expected a port this user may use, got " + address +
                    "; choose one above 1023");
  }
  fail("bind", error);
}

HostPort local_address(int fd, HostPort where) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0)
    fail("getsockname", errno);
  const std::uint16_t port = storage.ss_family == AF_INET6
                                 ? reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port
                                 : reinterpret_cast<const sockaddr_in*>(&storage)->sin_port;
  where.port = std::to_string(ntohs(port));
  return where;
}

AddressList resolve_to_listen(const HostPort& where,
                              const std::function<bool()>& should_stop = {}) {
  return look_up_own(where, Deadline::after(kOwnNameTimeout), &::getaddrinfo, should_stop);
}

// Returns 0, or the errno of the failure to listen.
int listen_once(const addrinfo& address, FileDescriptor& fd) {
  fd = FileDescriptor(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.is_open()) return errno;                    // IPv6 may be off
  set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);  // the port of a task that just ended
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

FileDescriptor bind_to(const HostPort& where, const std::function<bool()>& should_stop) {
  const AddressList addresses = resolve_to_listen(where, should_stop);
  FileDescriptor fd = open_socket(addresses->ai_family);
  set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);  // the port of a task that just ended
  if (bind(fd.get(), addresses->ai_addr, addresses->ai_addrlen) != 0)
    fail_listen(where.to_string(), errno);
  return fd;
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

// An IPv6 address; an IPv4 address is mapped to IPv6.
std::optional<in6_addr> number_of(const std::string& host) {
  in6_addr number{};
  if (inet_pton(AF_INET6, host.c_str(), &number) == 1) return number;
  if (inet_pton(AF_INET6, ("::ffff:" + host).c_str(), &number) == 1) return number;
  return std::nullopt;
}

std::optional<in6_addr> number_of(const sockaddr* address) {
  if (address == nullptr) return std::nullopt;
  if (address->sa_family == AF_INET6)
    return reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  if (address->sa_family != AF_INET) return std::nullopt;
  std::array<char, INET_ADDRSTRLEN> text{};
  inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text.data(),
            text.size());
  return number_of(std::string(text.data()));
}

// Whether the socket is connected to itself. The kernel joins both ends if it happens to choose the
// port at which nobody listens as the port of the connection.
bool is_self_connected(int fd) {
  sockaddr_storage own{};
  sockaddr_storage other{};
  socklen_t own_size = sizeof(own);
  socklen_t other_size = sizeof(other);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_size) != 0) return false;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&other), &other_size) != 0) return false;
  return own_size == other_size && std::memcmp(&own, &other, own_size) == 0;
}

// Waits for a started connect(). Returns 0 or its errno; nullopt after the deadline.
std::optional<int> wait_connected(int fd, Deadline deadline) {
  pollfd entry{fd, POLLOUT, 0};
  int count = 0;
  do {
    count = poll(&entry, 1, poll_milliseconds(deadline));
  } while (count < 0 ? errno == EINTR : count == 0 && !deadline.has_expired());
  if (count == 0) return std::nullopt;
  if (count < 0) return errno;
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  if (error == 0 && is_self_connected(fd)) return ECONNREFUSED;
  return error;
}

std::optional<int> connect_one(int fd, const addrinfo& address, Deadline deadline) {
  if (::connect(fd, address.ai_addr, address.ai_addrlen) == 0) {
    return is_self_connected(fd) ? ECONNREFUSED : 0;
  }
  return errno == EINPROGRESS || errno == EINTR ? wait_connected(fd, deadline) : errno;
}

}  // namespace

Waker::Waker() : event_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!event_.is_open()) fail("eventfd", errno);
}

void Waker::wake() noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(event_.get(), &one, sizeof(one));
}

void Waker::drain() noexcept {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto size = ::read(event_.get(), &count, sizeof(count));
}

std::string HostPort::to_string() const {
  const bool is_v6 = host.find(':') != std::string::npos;
  return (is_v6 ? "[" + host + "]" : host) + ":" + port;
}

HostPort parse_address(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  HostPort parsed;
  if (colon != std::string::npos) {
    parsed = {address.substr(0, colon), address.substr(colon + 1)};
    const bool has_brackets =
        parsed.host.size() > 2 && parsed.host.front() == '[' && parsed.host.back() == ']';
    if (has_brackets) parsed.host = parsed.host.substr(1, parsed.host.size() - 2);
    if (!has_brackets && parsed.host.find(':') != std::string::npos) parsed.host.clear();
  }
  const bool is_number = !parsed.port.empty() && parsed.port.size() <= 5 &&
                         parsed.port.find_first_not_of("0123456789") == std::string::npos;
  COHORT_CHECK(!parsed.host.empty() && is_number && std::stoi(parsed.port) <= 65535,
               ErrorCode::invalid_argument, "[rpc.address] expected \"host:port\", got \"", address,
               "\"");
  return parsed;
}

FileDescriptor listen_on(std::string& address, const std::function<bool()>& should_stop) {
  const HostPort where = parse_address(address);
  FileDescriptor fd = bind_to(where, should_stop);
  if (listen(fd.get(), SOMAXCONN) != 0) fail_listen(address, errno);
  address = local_address(fd.get(), where).to_string();
  return fd;
}

void check_can_listen(const std::string& address) {
  const HostPort where = parse_address(address);
  check_all_free(*resolve_to_listen(where), where);
}

void check_all_free(const addrinfo& addresses, const HostPort& where) {
  listen_on_each(addresses, where);
}

std::vector<FileDescriptor> listen_on_all(std::string& address,
                                          const std::function<bool()>& should_stop) {
  HostPort where = parse_address(address);
  if (where.port != "0") return listen_on_each(*resolve_to_listen(where, should_stop), where);
  // The port of the first address is used for the others.
  std::string chosen = address;
  std::vector<FileDescriptor> listening;
  listening.push_back(listen_on(chosen, should_stop));
  address = chosen;
  return listening;
}

FileDescriptor connect_to(const PeerName& peer, Deadline deadline) {
  return connect_to(peer, deadline, &::getaddrinfo);
}

FileDescriptor connect_to(const PeerName& peer, Deadline deadline,
                          const GetAddresses& get_addresses) {
  const auto found = look_up(parse_address(peer.address), false, deadline, get_addresses);
  if (!found || !found->list) throw unresolved_error(peer, found);
  return connect_to(peer, *found->list, deadline);
}

FileDescriptor connect_to(const PeerName& peer, const addrinfo& addresses, Deadline deadline) {
  std::string problem;
  int left = 0;
  for (const addrinfo* one = &addresses; one != nullptr; one = one->ai_next) ++left;
  for (const addrinfo* one = &addresses; one != nullptr; one = one->ai_next, --left) {
    FileDescriptor fd = open_socket(one->ai_family);
    // An address that does not answer must leave time for the others.
    const Deadline share = left == 1 ? deadline : Deadline::after(deadline.remaining() / left);
    const std::optional<int> error = connect_one(fd.get(), *one, share);
    if (!error && left == 1) throw expired_error(peer);
    if (!error) continue;
    if (*error == 0) return fd;
    const char* meaning = *error == ECONNREFUSED ? ", nobody listens there" : "";
    problem = text_of_errno(*error) + meaning;
  }
  throw refused_error(peer, problem);
}

void tune(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 15);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
  // Also ends a connection whose peer is alive but has read nothing for this long.
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 60'000);
}

HostPort numeric_address(const addrinfo& address) {
  const auto number = number_text(address.ai_addr, address.ai_addrlen);
  COHORT_ASSERT(number.has_value());
  return *number;
}

std::string remote_address(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  if (getpeername(fd, address, &size) != 0) return "a peer that left";
  const auto number = number_text(address, size);
  return number ? number->to_string() : "a peer";
}

bool is_this_host(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  const std::optional<in6_addr> number = number_of(host);
  if (!number) return false;
  if (IN6_IS_ADDR_LOOPBACK(&*number)) return true;
  if (IN6_IS_ADDR_V4MAPPED(&*number) && number->s6_addr[12] == 127) return true;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return false;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> kept(all, &freeifaddrs);
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    const std::optional<in6_addr> own = number_of(one->ifa_addr);
    if (own && std::memcmp(&*own, &*number, sizeof(in6_addr)) == 0) return true;
  }
  return false;
}

int poll_milliseconds(Deadline deadline) {
  if (deadline.is_infinite()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()).count();
  return static_cast<int>(std::min<std::int64_t>(left, std::numeric_limits<int>::max()));
}

}  // namespace cohort::rpc::internal

namespace cohort::rpc {

bool is_refusing(const std::string& address, Deadline deadline) noexcept {
  try {
    const auto found = internal::look_up(internal::parse_address(address), false, deadline);
    if (!found || !found->list) return false;
    for (const addrinfo* one = found->list.get(); one != nullptr; one = one->ai_next) {
      const FileDescriptor fd = internal::open_socket(one->ai_family);
      if (internal::connect_one(fd.get(), *one, deadline) != ECONNREFUSED) return false;
    }
    return true;
  } catch (...) {  // because of too few descriptors or threads
    return false;
  }
}

}  // namespace cohort::rpc
