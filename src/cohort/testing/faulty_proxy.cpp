// SPDX-License-Identifier: Apache-2.0
#include "cohort/testing/faulty_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <utility>

#include "cohort/core/clock.h"
#include "cohort/core/error.h"

namespace cohort::testing {
namespace {

constexpr std::size_t kHeaderBytes = 48;
constexpr std::size_t kSumBytes = 4;
constexpr std::size_t kPieceBytes = std::size_t{64} << 10;

sockaddr_in loopback(int port) {
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_port = htons(static_cast<std::uint16_t>(port));
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return where;
}

int connect_to(const std::string& target) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in where = loopback(std::stoi(target.substr(target.rfind(':') + 1)));
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&where), sizeof(where)) == 0) return fd;
  ::close(fd);
  return -1;
}

void send_at_once(int fd) {
  const int yes = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
}

bool read_all(int fd, char* to, std::size_t count) {
  while (count > 0) {
    const ssize_t got = ::recv(fd, to, count, 0);
    if (got <= 0) return false;
    to += got;
    count -= static_cast<std::size_t>(got);
  }
  return true;
}

bool write_all(int fd, const char* from, std::size_t count) {
  while (count > 0) {
    const ssize_t sent = ::send(fd, from, count, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    from += sent;
    count -= static_cast<std::size_t>(sent);
  }
  return true;
}

template <class Value>
Value field_at(const std::vector<char>& bytes, std::size_t offset) {
  Value value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

}  // namespace

std::string to_string(const Fault& fault) {
  constexpr std::array kKinds = {"flip a bit", "repeat a piece", "lose a piece",
                                 "cut",        "delay",          "swallow all from a piece"};
  constexpr std::array kParts = {"anything",  "the header",  "the metadata",
                                 "the table", "the payload", "a piece"};
  const bool is_to_server = fault.direction == Fault::Direction::to_server;
  return std::string(kKinds[static_cast<std::size_t>(fault.kind)]) + " of " +
         kParts[static_cast<std::size_t>(fault.part)] + " on its way to the " +
         (is_to_server ? "server" : "client") + " (" + std::to_string(fault.random) + ")";
}

struct FaultyProxy::Connection {
  int client;
  int server;
  std::thread to_server{};
  std::thread to_client{};
  std::atomic<int> threads{2};
  std::atomic<bool> is_spent{false};  // a bit of a frame was flipped: no more faults here

  Connection(int near, int far) : client(near), server(far) {}
  ~Connection() {
    to_server.join();
    to_client.join();
    ::close(client);
    ::close(server);
  }
  void end() const {
    ::shutdown(client, SHUT_RDWR);
    ::shutdown(server, SHUT_RDWR);
  }
};

// A frame, or a piece of a stream that has no frames.
struct FaultyProxy::Frame {
  std::vector<char> bytes;
  std::array<std::size_t, 5> ends{};  // end offset of each part, indexed by Part; `any` has 0

  bool read(int fd) {
    ends.fill(0);
    bytes.resize(kHeaderBytes);
    const ssize_t got = ::recv(fd, bytes.data(), kHeaderBytes, 0);
    if (got <= 0) return false;
    const auto begun = static_cast<std::size_t>(got);
    if (begun < 4 || std::memcmp(bytes.data(), "COHF", 4) != 0) return read_piece(fd, begun);
    if (!read_all(fd, bytes.data() + begun, kHeaderBytes - begun)) return false;
    ends[1] = kHeaderBytes;
    ends[2] = ends[1] + field_at<std::uint32_t>(bytes, 16);
    ends[3] = ends[2] + field_at<std::uint32_t>(bytes, 20);
    ends[4] = ends[3] + field_at<std::uint64_t>(bytes, 24);
    if (field_at<std::uint32_t>(bytes, 40) != 0) ends[4] += kSumBytes;
    bytes.resize(ends[4]);
    return read_all(fd, bytes.data() + kHeaderBytes, bytes.size() - kHeaderBytes);
  }

  bool read_piece(int fd, std::size_t begun) {
    bytes.resize(kPieceBytes);
    const ssize_t more = ::recv(fd, bytes.data() + begun, bytes.size() - begun, MSG_DONTWAIT);
    bytes.resize(begun + static_cast<std::size_t>(std::max<ssize_t>(more, 0)));
    return true;
  }

  bool is_frame() const { return ends[1] != 0; }

  // Begin and end offset of a part; they are equal if the frame does not have it.
  std::pair<std::size_t, std::size_t> place_of(Fault::Part part) const {
    const auto index = static_cast<std::size_t>(part);
    if (part == Fault::Part::any) return {0, bytes.size()};
    if (part == Fault::Part::piece) return {0, is_frame() ? 0 : bytes.size()};
    return {ends[index - 1], ends[index]};
  }
};

FaultyProxy::FaultyProxy() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in where = loopback(0);
  socklen_t size = sizeof(where);
  auto* address = reinterpret_cast<sockaddr*>(&where);
  const bool listens = ::bind(listener_, address, size) == 0 && ::listen(listener_, 64) == 0 &&
                       ::getsockname(listener_, address, &size) == 0;
  COHORT_CHECK(listens, ErrorCode::resource_exhausted, "[testing.proxy] no free port");
  address_ = "127.0.0.1:" + std::to_string(ntohs(where.sin_port));
  thread_ = std::thread([this] { accept_all(); });
}

FaultyProxy::~FaultyProxy() {
  std::list<std::unique_ptr<Connection>> open;
  {
    const Lock lock(mutex_);
    is_ending_ = true;
    changed_.notify_all();
  }
  ::shutdown(listener_, SHUT_RDWR);
  thread_.join();
  {
    const Lock lock(mutex_);
    open.swap(connections_);
  }
  for (const auto& connection : open) connection->end();
  open.clear();
  ::close(listener_);
}

void FaultyProxy::set_target(const std::string& target) {
  const Lock lock(mutex_);
  target_ = target;
  changed_.notify_all();
}

void FaultyProxy::arm(const Fault& fault) {
  const Lock lock(mutex_);
  fault_ = fault;
  has_happened_ = false;
}

bool FaultyProxy::has_happened() const {
  const Lock lock(mutex_);
  return has_happened_;
}

void FaultyProxy::disarm() {
  const Lock lock(mutex_);
  fault_.reset();
}

void FaultyProxy::accept_all() {
  while (true) {
    const int client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    {
      const Lock lock(mutex_);
      if (is_ending_) {
        if (client >= 0) ::close(client);
        return;
      }
    }
    if (client >= 0) serve(client);
  }
}

void FaultyProxy::serve(int client) {
  std::string target;
  {
    const Lock lock(mutex_);
    changed_.wait(mutex_, Deadline(),
                  [this]() COHORT_REQUIRES(mutex_) { return is_ending_ || !target_.empty(); });
    target = target_;
  }
  const int server = target.empty() ? -1 : connect_to(target);
  if (server < 0) {
    ::close(client);
    return;
  }
  send_at_once(client);
  send_at_once(server);
  const Lock lock(mutex_);
  std::erase_if(connections_, [](const auto& each) { return each->threads == 0; });
  connections_.push_back(std::make_unique<Connection>(client, server));
  Connection& made = *connections_.back();
  made.to_server = std::thread([this, &made, client, server] {
    forward(made, client, server, Fault::Direction::to_server);
  });
  made.to_client = std::thread([this, &made, client, server] {
    forward(made, server, client, Fault::Direction::to_client);
  });
}

void FaultyProxy::forward(Connection& connection, int from, int to, Fault::Direction direction) {
  Frame frame;
  bool is_swallowing = false;
  while (frame.read(from)) {
    if (is_swallowing) continue;
    const std::optional<Fault> fault = take_fault(connection, frame, direction);
    is_swallowing = fault && fault->kind == Fault::Kind::swallow;
    if (is_swallowing) continue;
    if (!fault && !write_all(to, frame.bytes.data(), frame.bytes.size())) break;
    if (fault && pass_on(frame, *fault, to) == Fate::ends) break;
  }
  connection.end();
  --connection.threads;
}

std::optional<Fault> FaultyProxy::take_fault(Connection& connection, const Frame& frame,
                                             Fault::Direction direction) {
  const Lock lock(mutex_);
  if (!fault_ || fault_->direction != direction || connection.is_spent) return std::nullopt;
  const auto [begin, end] = frame.place_of(fault_->part);
  if (begin == end) return std::nullopt;
  connection.is_spent = fault_->kind == Fault::Kind::flip && frame.is_frame();
  has_happened_ = true;
  return std::exchange(fault_, std::nullopt);
}

FaultyProxy::Fate FaultyProxy::pass_on(Frame& frame, const Fault& fault, int to) {
  const auto [begin, end] = frame.place_of(fault.part);
  std::vector<char>& bytes = frame.bytes;
  // Half of the random numbers choose the whole frame.
  const bool is_whole = fault.random % 2 == 0;
  const std::size_t first = is_whole ? 0 : begin + fault.random / 2 % (end - begin);
  const std::size_t count =
      is_whole ? bytes.size() : 1 + fault.random / 7919 % (bytes.size() - first);
  const auto write = [&](std::size_t at, std::size_t size) {
    return write_all(to, bytes.data() + at, size) ? Fate::passes : Fate::ends;
  };
  switch (fault.kind) {
    case Fault::Kind::flip: {
      const std::uint64_t bit = fault.random % (8 * (end - begin));
      bytes[begin + bit / 8] = static_cast<char>(bytes[begin + bit / 8] ^ (1 << bit % 8));
      return write(0, bytes.size());
    }
    case Fault::Kind::repeat:
      if (write(0, first + count) == Fate::ends) return Fate::ends;
      return write(first, bytes.size() - first);
    case Fault::Kind::lose:
      if (write(0, first) == Fate::ends) return Fate::ends;
      return write(first + count, bytes.size() - first - count);
    case Fault::Kind::cut:
      write(0, is_whole ? bytes.size() : first);
      return Fate::ends;
    case Fault::Kind::swallow:  // forward() does it
      return Fate::passes;
    case Fault::Kind::delay: {
      const Lock lock(mutex_);
      changed_.wait(mutex_, Deadline::after(fault.late),
                    [this]() COHORT_REQUIRES(mutex_) { return is_ending_; });
      break;
    }
  }
  return write(0, bytes.size());
}

}  // namespace cohort::testing
