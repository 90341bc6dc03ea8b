// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/sockets/acceptor.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <map>
#include <utility>

#include "cohort/core/log.h"
#include "cohort/core/system_error.h"
#include "cohort/net/socket.h"
#include "cohort/rpc/frames/channel_end.h"
#include "cohort/rpc/process_room.h"
#include "cohort/rpc/sockets/first_bytes.h"

namespace cohort::rpc::internal {
namespace {

constexpr int kAcceptedMax = 64;  // accepted in a row before other events are handled
constexpr auto kIdle = std::chrono::seconds(60);
constexpr std::uint64_t kWakerId = 0;  // ids after it: the listening sockets, by index
constexpr std::uint64_t kFirstStrangerId = 1U << 20;

// The beginning of the kernel's tcp_info; this C library's header has a shorter version.
struct TcpInfo {
  std::array<std::byte, 128> others;
  std::uint64_t bytes_received;
};

// 0 if the system does not report it.
std::uint64_t received_bytes(int socket) {
  TcpInfo info{};
  socklen_t size = sizeof(info);
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
  return size == sizeof(info) ? info.bytes_received : 0;
}

// A stranger takes its socket, a duplicate of it (Strangers::hand_over) and the descriptor that
// wakes the thread of its channel.
constexpr std::size_t kDescriptorsPerStranger = 3;
// Less would keep the job's own tasks from greeting at the same time.
constexpr std::size_t kStrangersMin = 4;

// At most half of the free descriptors are for strangers, so that the connections that this process
// makes, to other tasks and to files, always find one.
StrangerLimits within_descriptors(StrangerLimits limits) {
  const std::size_t affordable = free_descriptors() / 2 / kDescriptorsPerStranger;
  limits.connections_max = std::min(limits.connections_max, std::max(affordable, kStrangersMin));
  return limits;
}

FileDescriptor make_epoll() {
  FileDescriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.is_open()) {
    ::cohort::internal::throw_error(
        ErrorCode::resource_exhausted,
        "[rpc.accept] expected a descriptor to wait on, got: ", text_of_errno(errno));
  }
  return epoll;
}

}  // namespace

// The accepted connections that are not admitted yet, in the order of their arrival. Thread-safe.
class Acceptor::Strangers : public std::enable_shared_from_this<Strangers> {
 public:
  struct Seen {
    FirstBytes kind = FirstBytes::unknown;
    bool is_whole = false;  // its server need not wait for more bytes before it can act
    std::size_t port = 0;
  };

  explicit Strangers(const StrangerLimits& limits) : limits_(limits), epoll_(make_epoll()) {}

  // For the acceptor's own descriptors.
  void watch(int fd, std::uint64_t id) { control(EPOLL_CTL_ADD, fd, EPOLLIN, id); }
  void ignore(int fd) const { epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }
  std::vector<epoll_event> wait() {
    std::vector<epoll_event> events(64);
    const Deadline until = std::min(Deadline::after(kIdle), next_deadline(),
                                    [](auto a, auto b) { return a.time() < b.time(); });
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                 net::poll_milliseconds(until));
    events.resize(static_cast<std::size_t>(std::max(count, 0)));
    return events;
  }

  void add(FileDescriptor socket, std::string address, std::size_t port) {
    const Lock lock(mutex_);
    const std::uint64_t id = next_id_++;
    control(EPOLL_CTL_ADD, socket.get(), kNews, id);
    entries_[id] = {.socket = std::move(socket),
                    .address = std::move(address),
                    .port = port,
                    .deadline = Deadline::after(limits_.patience)};
  }

  // Returns nullopt for a connection that was handed over or has ended.
  std::optional<Seen> first_bytes(std::uint64_t id) const {
    const Lock lock(mutex_);
    const auto found = entries_.find(id);
    if (found == entries_.end() || found->second.is_handed_over) return std::nullopt;
    const int socket = found->second.socket.get();
    const FirstBytes kind = first_bytes_of(socket);
    const bool is_whole = kind != FirstBytes::frames || has_first_frame(socket, limits_.bytes_max);
    return Seen{kind, is_whole, found->second.port};
  }

  // Returns the socket, and the visitor to admit once the peer has completed its handshake. Keeps a
  // duplicate of the socket, so that this class can still end the connection.
  std::pair<FileDescriptor, std::shared_ptr<Visitor>> hand_over(std::uint64_t id) {
    const Lock lock(mutex_);
    const auto found = entries_.find(id);
    COHORT_ASSERT(found != entries_.end());
    Entry& entry = found->second;
    FileDescriptor duplicate(fcntl(entry.socket.get(), F_DUPFD_CLOEXEC, 0));
    COHORT_CHECK(duplicate.is_open(), ErrorCode::resource_exhausted,
                 "[rpc.accept] expected a descriptor for a connection of ", entry.address,
                 ", got error: ", text_of_errno(errno));
    control(EPOLL_CTL_DEL, entry.socket.get(), 0, id);
    control(EPOLL_CTL_ADD, duplicate.get(), kNews, id);
    std::swap(entry.socket, duplicate);
    entry.is_handed_over = true;
    const auto forget = [weak = weak_from_this(), id] {
      if (const auto strangers = weak.lock()) strangers->forget(id);
    };
    entry.visitor = std::make_shared<Visitor>(entry.address, forget);
    return {std::move(duplicate), entry.visitor};
  }

  // Removes a connection that its peer closed. Returns nullopt if a call was made over it, since
  // its answer or refusal has been reported.
  std::optional<Refused> see_off(std::uint64_t id) {
    const Lock lock(mutex_);
    const auto found = entries_.find(id);
    if (found == entries_.end()) return std::nullopt;
    const Entry& entry = found->second;
    std::optional<Refused> refused;
    if (!entry.visitor || !entry.visitor->has_called())
      refused = Refused{entry.address, "it disconnected without a handshake"};
    erase(found);
    return refused;
  }

  void forget(std::uint64_t id) {
    const Lock lock(mutex_);
    const auto found = entries_.find(id);
    if (found != entries_.end()) erase(found);
  }

  std::optional<Refused> cut(std::uint64_t id, std::string why) {
    const Lock lock(mutex_);
    const auto found = entries_.find(id);
    if (found == entries_.end()) return std::nullopt;
    return end(found, std::move(why));
  }

  std::optional<Refused> cut_if_too_much(std::uint64_t id) {
    const Lock lock(mutex_);
    const auto found = entries_.find(id);
    if (found == entries_.end() || !found->second.is_handed_over ||
        received_bytes(found->second.socket.get()) <= limits_.bytes_max) {
      return std::nullopt;
    }
    return end(found, "expected at most " + std::to_string(limits_.bytes_max) +
                          " bytes before its handshake, got more");
  }

  std::optional<Refused> cut_oldest(std::string why) {
    const Lock lock(mutex_);
    if (entries_.empty()) return std::nullopt;
    return end(entries_.begin(), std::move(why));
  }

  std::optional<Refused> cut_oldest_if_too_many() {
    const Lock lock(mutex_);
    if (entries_.size() <= limits_.connections_max) return std::nullopt;
    return end(entries_.begin(),
               "expected at most " + std::to_string(limits_.connections_max) +
                   " connections without a handshake, got more: the oldest is closed");
  }

  std::optional<Refused> cut_if_expired() {
    const Lock lock(mutex_);
    if (entries_.empty() || !entries_.begin()->second.deadline.has_expired()) return std::nullopt;
    return end(entries_.begin(), "expected a handshake within " +
                                     std::to_string(limits_.patience / std::chrono::seconds(1)) +
                                     " s, got none");
  }

  std::size_t size() const {
    const Lock lock(mutex_);
    return entries_.size();
  }

 private:
  // Edge-triggered, since nothing is read here. EPOLLOUT is included because it is reported
  // whenever bytes arrive, even if another thread has read them already.
  static constexpr std::uint32_t kNews = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;

  struct Entry {
    FileDescriptor socket;  // once handed over, a duplicate
    std::string address;
    std::size_t port = 0;
    Deadline deadline;
    bool is_handed_over = false;
    std::shared_ptr<Visitor> visitor{};  // once handed over
  };
  using Entries = std::map<std::uint64_t, Entry>;

  Deadline next_deadline() const {
    const Lock lock(mutex_);
    return entries_.empty() ? Deadline() : entries_.begin()->second.deadline;
  }

  void control(int operation, int fd, std::uint32_t events, std::uint64_t id) const {
    epoll_event event{};
    event.events = events;
    event.data.u64 = id;
    if (epoll_ctl(epoll_.get(), operation, fd, &event) == 0) return;
    ::cohort::internal::throw_error(ErrorCode::resource_exhausted,
                                    "[rpc.accept] expected to wait for a connection, got error ",
                                    errno, "; raise this system's limits of epoll");
  }

  // Closing a duplicate would not remove it from the epoll.
  void erase(Entries::iterator entry) COHORT_REQUIRES(mutex_) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, entry->second.socket.get(), nullptr);
    entries_.erase(entry);
  }

  Refused end(Entries::iterator entry, std::string why) COHORT_REQUIRES(mutex_) {
    Refused refused{entry->second.address, std::move(why)};
    ::shutdown(entry->second.socket.get(), SHUT_RDWR);
    erase(entry);
    return refused;
  }

  const StrangerLimits limits_;
  const FileDescriptor epoll_;
  mutable Mutex mutex_;
  Entries entries_ COHORT_GUARDED_BY(mutex_);
  std::uint64_t next_id_ COHORT_GUARDED_BY(mutex_) = kFirstStrangerId;
};

Acceptor::Acceptor(Options options)
    : options_(std::move(options)),
      strangers_(std::make_shared<Strangers>(within_descriptors(options_.limits))) {
  strangers_->watch(waker_.fd(), kWakerId);
  for (std::size_t port = 0; port < options_.ports.size(); ++port) {
    for (FileDescriptor& socket :
         net::listen_on_all(options_.ports[port].address, options_.should_stop)) {
      strangers_->watch(socket.get(), kWakerId + 1 + listening_.size());
      listening_.push_back({std::move(socket), port});
    }
  }
  thread_ = start_thread([this] { run(); });
}

Acceptor::~Acceptor() {
  is_stopped_ = true;
  waker_.wake();
  thread_.join();
  failures_.finish();
}

std::size_t Acceptor::strangers() const { return strangers_->size(); }

void Acceptor::close_ports() noexcept {
  is_closed_ = true;
  for (const Listening& one : listening_) ::shutdown(one.socket.get(), SHUT_RDWR);
}

void Acceptor::run() noexcept {
  const auto guarded = [this](const auto& act) {
    try {
      act();
    } catch (...) {
      log_error("accepting on ", address(0), " failed: ", current_error().what());
    }
  };
  while (!is_stopped_) {
    std::vector<epoll_event> events;
    guarded([&] { events = strangers_->wait(); });
    // Each has its own guard, since an edge-triggered event is not repeated.
    for (const epoll_event& event : events) guarded([&] { handle(event.data.u64, event.events); });
    guarded([&] { end_expired(); });
  }
}

void Acceptor::handle(std::uint64_t id, std::uint32_t events) {
  if (id == kWakerId) return;  // the destructor woke it
  if (id < kFirstStrangerId) {
    accept_from(id - kWakerId - 1);
  } else if ((events & (EPOLLHUP | EPOLLERR)) != 0) {
    note(strangers_->see_off(id));
  } else if (!note(strangers_->cut_if_too_much(id))) {
    look_at(id, (events & EPOLLRDHUP) != 0);
  }
}

void Acceptor::end_expired() {
  while (note(strangers_->cut_if_expired())) {
  }
  options_.refusals->settle();
  failures_.settle();
}

bool Acceptor::note(const std::optional<Refused>& refused) {
  if (refused) options_.refusals->note(refused->who, refused->why);
  return refused.has_value();
}

void Acceptor::accept_from(std::size_t listening) {
  const Listening& from = listening_.at(listening);
  if (is_closed_) return strangers_->ignore(from.socket.get());
  for (int i = 0; i < kAcceptedMax; ++i) {
    FileDescriptor socket(
        accept4(from.socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.is_open()) {
      // The peer closed the connection before it was accepted, which is no failure.
      const int error = errno;
      if (error == EAGAIN || error == ECONNABORTED || error == EINTR) return;
      // The system allocates a descriptor before it checks whether a connection waits.
      pollfd waiting{from.socket.get(), POLLIN, 0};
      if (poll(&waiting, 1, 0) == 0) return;
      wait_for_room(from.port, error);
      return;
    }
    net::tune(socket.get(), net::Unacknowledged::for_a_minute);
    std::string who = net::remote_address(socket.get());
    strangers_->add(std::move(socket), std::move(who), from.port);
    while (note(strangers_->cut_oldest_if_too_many())) {
    }
  }
}

// Closes the oldest stranger, so that strangers do not keep the job's own tasks out. Then pauses,
// since an immediate retry would only burn a core: the owner of that stranger's descriptor closes
// it soon.
void Acceptor::wait_for_room(std::size_t port, int error) {
  failures_.note("on " + address(port), text_of_errno(error));
  const bool is_cut =
      note(strangers_->cut_oldest("this process lacks resources for more connections: the oldest "
                                  "without a handshake is closed"));
  pollfd entry{waker_.fd(), POLLIN, 0};
  poll(&entry, 1, is_cut ? 10 : 100);
}

void Acceptor::look_at(std::uint64_t id, bool sends_no_more) {
  const std::optional<Strangers::Seen> seen = strangers_->first_bytes(id);
  if (!seen) return;
  const bool is_unknown = seen->kind == FirstBytes::unknown;
  if (seen->kind == FirstBytes::gone || (sends_no_more && (is_unknown || !seen->is_whole))) {
    note(strangers_->see_off(id));
    return;
  }
  if (is_unknown) return;
  const Port& port = options_.ports[seen->port];
  const bool is_http2 = seen->kind == FirstBytes::http2;
  const bool is_http1 = seen->kind == FirstBytes::http1;
  const Take& take = is_http1 ? port.take_http1 : is_http2 ? port.take_http2 : port.take_frames;
  if (seen->kind != FirstBytes::neither && take) {
    // Frames are handed over with a whole one, because each of those connections takes a thread.
    if (seen->is_whole) hand_over(id, take);
    return;
  }
  note(strangers_->cut(id, seen->kind == FirstBytes::neither || is_http1
                               ? "expected HTTP/2 or frames of Cohort, got other bytes"
                               : std::string("expected ") +
                                     (is_http2 ? "frames of Cohort" : "HTTP/2") + " at " +
                                     port.address + ", got " + (is_http2 ? "HTTP/2" : "frames")));
}

void Acceptor::hand_over(std::uint64_t id, const Take& take) {
  try {
    auto [socket, visitor] = strangers_->hand_over(id);
    take(std::move(socket), std::move(visitor));
  } catch (...) {
    note(strangers_->cut(id, current_error().message()));
  }
}

}  // namespace cohort::rpc::internal
