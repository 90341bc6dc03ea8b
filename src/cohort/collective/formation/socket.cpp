// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/formation/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "cohort/collective/formation/fork_guard.h"
#include "cohort/collective/keep_alive.h"
#include "cohort/core/error.h"
#include "cohort/core/random.h"
#include "cohort/core/start_thread.h"
#include "cohort/core/system_error.h"

namespace cohort::collective {
namespace {

// KeepAlive, in the order of its members.
std::array<std::atomic<int>, 3> keep_alive_of_all{KeepAlive().idle, KeepAlive().interval,
                                                  KeepAlive().count};

}  // namespace

void set_keep_alive(const KeepAlive& keep_alive) {
  keep_alive_of_all[0] = keep_alive.idle;
  keep_alive_of_all[1] = keep_alive.interval;
  keep_alive_of_all[2] = keep_alive.count;
}

namespace formation {
namespace {

// For this host's own name, whose lookup has no caller's deadline.
constexpr auto kOwnNameTimeout = std::chrono::seconds(30);

struct HostAndPort {
  std::string host;
  std::string port;
};

HostAndPort parsed(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  HostAndPort parts;
  if (colon != std::string::npos) {
    parts = {address.substr(0, colon), address.substr(colon + 1)};
    const bool has_brackets =
        parts.host.size() > 2 && parts.host.front() == '[' && parts.host.back() == ']';
    if (has_brackets) {
      parts.host = parts.host.substr(1, parts.host.size() - 2);
    } else if (parts.host.find(':') != std::string::npos) {
      parts.host.clear();
    }
  }
  const bool is_number = !parts.port.empty() && parts.port.size() <= 5 &&
                         parts.port.find_first_not_of("0123456789") == std::string::npos;
  COHORT_CHECK(!parts.host.empty() && is_number && std::stoi(parts.port) >= 1 &&
                   std::stoi(parts.port) <= 65535,
               ErrorCode::invalid_argument,
               "[collective.address] expected \"host:port\" with a port of 1 to 65535, got \"",
               address, "\"");
  return parts;
}

std::pair<std::shared_ptr<const addrinfo>, std::string> addresses_of(const HostAndPort& where,
                                                                     int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* found = nullptr;
  const int result = ::getaddrinfo(where.host.c_str(), where.port.c_str(), &hints, &found);
  if (result != 0) return {nullptr, ::gai_strerror(result)};
  return {std::shared_ptr<const addrinfo>(
              found, [](const addrinfo* list) { ::freeaddrinfo(const_cast<addrinfo*>(list)); }),
          {}};
}

void set_option(int fd, int level, int name, int value) {
  // A system without the option works less well, but it works.
  ::setsockopt(fd, level, name, &value, sizeof(value));
}

// Returns 0 or why it failed.
int listen_on(const addrinfo& address, FileDescriptor& socket) {
  socket =
      FileDescriptor(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.is_open()) return errno;
  // The port may be reserved by a socket that does not listen, or be that of a process that ended.
  set_option(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  keep_from_children(socket.get());
  if (::bind(socket.get(), address.ai_addr, address.ai_addrlen) != 0) return errno;
  return ::listen(socket.get(), SOMAXCONN) == 0 ? 0 : errno;
}

[[noreturn]] void fail_to_listen(const std::string& address, int error) {
  // No mistake of the configuration: the process before may not have ended yet.
  COHORT_CHECK(error != EADDRINUSE, ErrorCode::resource_exhausted,
               "[collective.listen] expected a free port, got ", address,
               ", which is in use, since another process listens there; if that is a worker of "
               "this job, two have the same index in TF_CONFIG, or their lists of workers have "
               "different orders: give each worker an index of its own, and all the same list; "
               "otherwise end that process, or choose another port");
  COHORT_CHECK(error != EADDRNOTAVAIL, ErrorCode::invalid_argument,
               "[collective.listen] expected an address of this host, got ", address,
               "; correct the address of this task, or its index, in TF_CONFIG");
  COHORT_CHECK(error != EACCES, ErrorCode::permission_denied,
               "[collective.listen] expected a port that this user may use, got ", address,
               "; choose one above 1023");
  cohort::internal::throw_error(code_of_errno(error, ErrorCode::internal),
                                "[collective.listen] expected to listen at ", address,
                                ", got: ", text_of_errno(error));
}

// The kernel connects a socket to itself if it chooses the port at which nobody listens as the
// socket's own.
bool is_connected_to_itself(int fd) {
  sockaddr_storage own{};
  sockaddr_storage peer{};
  socklen_t own_size = sizeof(own);
  socklen_t peer_size = sizeof(peer);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_size) != 0) return false;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_size) != 0) return false;
  return own_size == peer_size && std::memcmp(&own, &peer, own_size) == 0;
}

}  // namespace

Waker::Waker() : event_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  COHORT_CHECK(event_.is_open(), code_of_errno(errno, ErrorCode::internal),
               "[collective.listen] expected an eventfd, got: ", text_of_errno(errno));
}

void Waker::wake() noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(event_.get(), &one, sizeof(one));
}

void Waker::drain() noexcept {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto size = ::read(event_.get(), &count, sizeof(count));
}

std::shared_ptr<Lookup> Lookup::start(const std::string& address, bool is_for_listening) {
  const HostAndPort where = parsed(address);
  const int flags = is_for_listening ? AI_PASSIVE : 0;
  auto lookup = std::make_shared<Lookup>();
  if (auto [number, problem] = addresses_of(where, flags | AI_NUMERICHOST); number) {
    lookup->set(std::move(number), {});
    return lookup;
  }
  start_without_signals("to look up a host's name", [lookup, where, flags] {
    auto [found, problem] = addresses_of(where, flags);
    lookup->set(std::move(found), std::move(problem));
  }).detach();
  return lookup;
}

void Lookup::set(std::shared_ptr<const addrinfo> found, std::string problem) {
  {
    const Lock lock(mutex_);
    is_done_ = true;
    found_ = std::move(found);
    problem_ = std::move(problem);
  }
  changed_.notify_all();
}

bool Lookup::is_done() const {
  const Lock lock(mutex_);
  return is_done_;
}

bool Lookup::wait(Deadline deadline) {
  const Lock lock(mutex_);
  return changed_.wait(mutex_, deadline, [&]() COHORT_REQUIRES(mutex_) { return is_done_; });
}

std::shared_ptr<const addrinfo> Lookup::found() const {
  const Lock lock(mutex_);
  return found_;
}

std::string Lookup::problem() const {
  const Lock lock(mutex_);
  return problem_;
}

void check_address(const std::string& address) { parsed(address); }

std::vector<FileDescriptor> listen_at(const std::string& address) {
  const std::shared_ptr<Lookup> lookup = Lookup::start(address, true);
  COHORT_CHECK(lookup->wait(Deadline::after(kOwnNameTimeout)), ErrorCode::deadline_exceeded,
               "[collective.listen] expected the address of this host's name in ", address,
               ", got none in 30 s; write the address as a number");
  const std::shared_ptr<const addrinfo> found = lookup->found();
  COHORT_CHECK(found != nullptr, ErrorCode::invalid_argument,
               "[collective.listen] expected an address of this host, got ", address, ": ",
               lookup->problem());
  std::vector<FileDescriptor> sockets;
  int problem = 0;
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    FileDescriptor socket;
    const int error = listen_on(*one, socket);
    // Otherwise a connection could reach either program.
    if (error == EADDRINUSE) fail_to_listen(address, error);
    if (error == 0) sockets.push_back(std::move(socket));
    if (problem == 0) problem = error;
  }
  if (sockets.empty()) fail_to_listen(address, problem);
  return sockets;
}

std::uint64_t address_hash(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (::getnameinfo(address, size, host.data(), host.size(), port.data(), port.size(),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return 0;
  return mix_seed(mix_seed(0, std::string_view(host.data())), std::string_view(port.data()));
}

std::vector<std::uint64_t> bound_addresses(const std::vector<FileDescriptor>& sockets) {
  std::vector<std::uint64_t> hashes;
  for (const FileDescriptor& socket : sockets) {
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    auto* const where = reinterpret_cast<sockaddr*>(&own);
    if (::getsockname(socket.get(), where, &size) == 0) hashes.push_back(address_hash(where, size));
  }
  return hashes;
}

int start_connecting(const addrinfo& address, FileDescriptor& socket) {
  socket =
      FileDescriptor(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.is_open()) return errno;
  tune_link(socket.get());
  if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0)
    return is_connected_to_itself(socket.get()) ? ECONNREFUSED : 0;
  return errno == EINTR ? EINPROGRESS : errno;
}

int connected_error(int fd) {
  int error = 0;
  socklen_t size = sizeof(error);
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  if (error == 0 && is_connected_to_itself(fd)) return ECONNREFUSED;
  return error;
}

void tune_link(int fd) {
  keep_from_children(fd);
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, keep_alive_of_all[0]);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, keep_alive_of_all[1]);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, keep_alive_of_all[2]);
}

std::thread start_without_signals(std::string_view purpose, std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread thread = start_thread(purpose, std::move(body));
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (...) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
}

int poll_milliseconds(Deadline deadline) {
  if (deadline.is_infinite()) return -1;
  if (deadline.has_expired()) return 0;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, std::numeric_limits<int>::max()));
}

}  // namespace formation
}  // namespace cohort::collective
