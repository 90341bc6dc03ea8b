// SPDX-License-Identifier: Apache-2.0
// Connected stream sockets for tests, and relays between them that damage what passes.
#pragma once

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <thread>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/file_descriptor.h"

namespace cohort::testing {

// Both do not block.
using SocketPair = std::array<FileDescriptor, 2>;

inline SocketPair unix_pair(int flags = SOCK_NONBLOCK) {
  int pair[2] = {-1, -1};
  COHORT_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0, pair) == 0,
               ErrorCode::internal, "[testing.socket_pairs] no pair of sockets");
  return {FileDescriptor(pair[0]), FileDescriptor(pair[1])};
}

// Over TCP on loopback.
inline SocketPair tcp_pair() {
  const FileDescriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const address = reinterpret_cast<sockaddr*>(&where);
  socklen_t size = sizeof where;
  FileDescriptor client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool is_connected = ::bind(listener.get(), address, size) == 0 &&
                            ::listen(listener.get(), 1) == 0 &&
                            ::getsockname(listener.get(), address, &size) == 0 &&
                            ::connect(client.get(), address, size) == 0;
  COHORT_CHECK(is_connected, ErrorCode::internal, "[testing.socket_pairs] no TCP connection");
  ::fcntl(client.get(), F_SETFL, O_NONBLOCK);
  return {std::move(client), FileDescriptor(::accept4(listener.get(), nullptr, nullptr,
                                                      SOCK_NONBLOCK | SOCK_CLOEXEC))};
}

struct Damage {
  enum class Kind : std::uint8_t { none, flip, lose, repeat, cut, swallow };
  Kind kind = Kind::none;
  bool is_to_second = true;  // of what the first socket sends; else of what the second one sends
  std::size_t position = 0;  // of the first damaged byte of that direction
  std::size_t length = 1;    // of lose and repeat: bytes, or fewer at the end of a piece
  unsigned bit = 0;          // of flip
};

// Forwards the bytes of pairs of sockets, by two threads for each. Thread-compatible.
class Relays {
 public:
  Relays() = default;
  ~Relays() {
    for (Relay& relay : relays_) {
      relay.cut();
      for (std::thread& thread : relay.threads) thread.join();
    }
  }
  Relays(const Relays&) = delete;
  Relays& operator=(const Relays&) = delete;

  SocketPair make(const Damage& damage) {
    SocketPair first = unix_pair(0);
    SocketPair second = unix_pair(0);
    ::fcntl(first[0].get(), F_SETFL, O_NONBLOCK);
    ::fcntl(second[1].get(), F_SETFL, O_NONBLOCK);
    Relay& relay = relays_.emplace_back();
    relay.ends = {std::move(first[1]), std::move(second[0])};
    for (const std::size_t from : {std::size_t{0}, std::size_t{1}}) {
      Damage here = damage;
      if (damage.is_to_second != (from == 0)) here.kind = Damage::Kind::none;
      relay.threads[from] = std::thread([&relay, from, here] { run(relay, from, here); });
    }
    return {std::move(first[0]), std::move(second[1])};
  }

 private:
  struct Relay {
    SocketPair ends;
    std::array<std::thread, 2> threads;
    void cut() const {
      for (const FileDescriptor& end : ends) ::shutdown(end.get(), SHUT_RDWR);
    }
  };

  static void write(int to, const std::byte* bytes, std::size_t count) {
    while (count > 0) {
      const ssize_t sent = ::send(to, bytes, count, MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes += sent;
      count -= static_cast<std::size_t>(sent);
    }
  }

  static void run(Relay& relay, std::size_t from, const Damage& damage) {
    std::byte bytes[1 << 14];
    std::size_t num_passed = 0;
    const int to = relay.ends[1 - from].get();
    while (true) {
      const ssize_t got = ::recv(relay.ends[from].get(), bytes, sizeof bytes, 0);
      if (got <= 0) break;
      const auto count = static_cast<std::size_t>(got);
      const std::size_t at = damage.position - std::min(damage.position, num_passed);
      const bool is_here =
          damage.kind != Damage::Kind::none && at < count && num_passed <= damage.position;
      num_passed += count;
      if (!is_here) {
        write(to, bytes, count);
        continue;
      }
      const std::size_t length = std::min(damage.length, count - at);
      if (damage.kind == Damage::Kind::flip) {
        bytes[at] ^= std::byte{1} << (damage.bit % 8);
        write(to, bytes, count);
        continue;
      }
      write(to, bytes, damage.kind == Damage::Kind::repeat ? at + length : at);
      if (damage.kind == Damage::Kind::cut) return relay.cut();
      if (damage.kind == Damage::Kind::swallow) {
        while (::recv(relay.ends[from].get(), bytes, sizeof bytes, 0) > 0) {
        }
        break;
      }
      const std::size_t next = damage.kind == Damage::Kind::repeat ? at : at + length;
      write(to, bytes + next, count - next);
    }
    ::shutdown(to, SHUT_WR);
  }

  std::list<Relay> relays_;
};

}  // namespace cohort::testing
