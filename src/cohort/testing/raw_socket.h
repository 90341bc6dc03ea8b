// SPDX-License-Identifier: Apache-2.0
// A bare TCP socket on loopback, for peers that misbehave.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cohort::testing {

// Thread-compatible.
class RawSocket {
 public:
  RawSocket() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  RawSocket(RawSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  RawSocket& operator=(RawSocket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~RawSocket() {
    if (fd_ >= 0) ::close(fd_);
  }

  static RawSocket connected(const std::string& address) {
    RawSocket socket;
    socket.connect(address);
    return socket;
  }
  void connect(const std::string& address) {
    const sockaddr_in where = loopback(port_of(address));
    [[maybe_unused]] const int result =
        ::connect(fd_, reinterpret_cast<const sockaddr*>(&where), sizeof(where));
  }

  // Listens and returns the address; connections stay in the queue until accepted().
  std::string listen(int backlog = 16) {
    sockaddr_in where = loopback(0);
    socklen_t size = sizeof(where);
    auto* address = reinterpret_cast<sockaddr*>(&where);
    ::bind(fd_, address, size);
    ::listen(fd_, backlog);
    ::getsockname(fd_, address, &size);
    return "127.0.0.1:" + std::to_string(ntohs(where.sin_port));
  }

  // The next connection to this listener; waits for it.
  RawSocket accepted() { return RawSocket(::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC)); }

  void write(std::span<const std::byte> bytes) {
    ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }

  // Reads until the peer closes or resets the connection; returns false if no data and no end
  // arrives for a minute.
  bool await_end() {
    constexpr int kPatience = 60'000;  // milliseconds
    pollfd entry{fd_, POLLIN, 0};
    while (::poll(&entry, 1, kPatience) == 1) {
      char bytes[4096];
      if (::recv(fd_, bytes, sizeof bytes, 0) <= 0) return true;
    }
    return false;
  }
  // Waits until something has arrived, which stays unread; at most a minute.
  void await_bytes() const {
    pollfd entry{fd_, POLLIN, 0};
    ::poll(&entry, 1, 60'000);
  }
  // All that arrives until the peer closes, or until nothing arrives for a minute.
  std::string read_all() {
    std::string text;
    pollfd entry{fd_, POLLIN, 0};
    while (::poll(&entry, 1, 60'000) == 1) {
      char bytes[4096];
      const auto count = ::recv(fd_, bytes, sizeof bytes, 0);
      if (count <= 0) break;
      text.append(bytes, static_cast<std::size_t>(count));
    }
    return text;
  }
  // Whether the peer has closed the connection; does not wait.
  bool has_ended() {
    char byte = 0;
    const auto count = ::recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return count == 0 || (count < 0 && errno != EAGAIN);
  }
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }

  // Resets the connection, as a crash does.
  void reset() {
    const linger now{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    ::close(std::exchange(fd_, -1));
  }

 private:
  explicit RawSocket(int fd) : fd_(fd) {}
  static std::uint16_t port_of(const std::string& address) {
    return static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  }
  static sockaddr_in loopback(std::uint16_t port) {
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_port = htons(port);
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return where;
  }

  int fd_;
};

// An address that neither accepts nor refuses connections: a listener with a full queue.
class DeadAddress {
 public:
  DeadAddress() : address_(listener_.listen(0)) {
    // One connection fills a queue of length 0; later ones are not answered.
    waiting_.push_back(RawSocket::connected(address_));
  }
  const std::string& address() const { return address_; }

 private:
  RawSocket listener_;
  std::string address_;
  std::vector<RawSocket> waiting_;
};

}  // namespace cohort::testing
