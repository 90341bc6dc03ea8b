// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/formation/listener.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <map>
#include <utility>

#include "cohort/core/clock.h"
#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/core/start_thread.h"
#include "cohort/core/system_error.h"
#include "cohort/net/socket.h"

namespace cohort::collective::formation {
namespace {

constexpr auto kSettleTimeout = std::chrono::seconds(1);
constexpr auto kStrangerTimeout = std::chrono::seconds(5);
// A connection that asks nothing is closed after this time; workers ask much more often while they
// form a group.
constexpr auto kIdleTimeout = std::chrono::seconds(60);
// A stranger that announces a large message gets its memory only as its bytes come.
constexpr std::size_t kReadBytes = 4096;
// When there are no file descriptors.
constexpr auto kAcceptPause = std::chrono::milliseconds(100);

struct Connected {
  FileDescriptor socket = {};
  bool is_stranger = true;
  bool is_closing = false;  // after the last byte of `out`
  TimePoint expires = {};
  std::array<std::byte, Header::kBytes> header_bytes = {};
  std::size_t num_header = 0;
  std::optional<Header> header = {};
  Bytes body = {};
  Bytes out = {};
  std::size_t num_out = 0;
};

// Whether the connection ends with the answer; who gets it stays a stranger.
bool is_last(ReplyKind kind) { return kind == ReplyKind::refused || kind == ReplyKind::status; }

bool must_wait(ssize_t size) { return size < 0 && (errno == EAGAIN || errno == EINTR); }

}  // namespace

// Used only from the listener's thread.
class Listener::Connections {
 public:
  explicit Connections(Options options) : options_(std::move(options)) {}

  void add_to(std::vector<pollfd>& entries, std::vector<std::uint64_t>& ids) const {
    for (const auto& [id, connected] : all_) {
      const short events = connected.num_out < connected.out.size() ? POLLOUT : POLLIN;
      entries.push_back({connected.socket.get(), events, 0});
      ids.push_back(id);
    }
  }

  void accept_from(int listening) {
    for (int i = 0; i < 16; ++i) {
      FileDescriptor socket(::accept4(listening, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket.is_open()) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
          if (!std::exchange(has_warned_, true))
            log_warn("[collective.listen] cannot accept connections of other workers: ",
                     text_of_errno(errno));
          drop_oldest_stranger();
          accepts_again_ = Clock::system().now() + kAcceptPause;
        }
        return;
      }
      net::tune(socket.get(), net::Unacknowledged::no_limit);
      if (count(true) >= options_.strangers_max) drop_oldest_stranger();
      Connected& added = all_[next_id_++];
      added.socket = std::move(socket);
      added.expires = Clock::system().now() + kStrangerTimeout;
    }
  }
  bool accepts() const { return Clock::system().now() >= accepts_again_; }

  void handle(std::uint64_t id) {
    const auto found = all_.find(id);
    if (found == all_.end()) return;
    bool stays = false;
    try {
      stays = found->second.num_out < found->second.out.size() ? write(found->second)
                                                               : read(id, found->second);
    } catch (const Error& error) {
      log_debug("[collective.listen] a connection was closed: ", error.message());
    } catch (const std::exception& error) {  // no memory
      log_debug("[collective.listen] a connection was closed: ", error.what());
    }
    if (!stays) close(found);
  }

  void close_expired() {
    const TimePoint now = Clock::system().now();
    for (auto it = all_.begin(); it != all_.end();) {
      const auto one = it++;
      if (one->second.expires <= now) close(one);
    }
  }

  // When to call close_expired() and accepts() again.
  Deadline wakes_at() const {
    TimePoint earliest = TimePoint::max();
    for (const auto& [id, connected] : all_) earliest = std::min(earliest, connected.expires);
    if (!accepts()) earliest = std::min(earliest, accepts_again_);
    return Deadline(earliest);
  }

 private:
  using All = std::map<std::uint64_t, Connected>;

  std::size_t count(bool strangers) const {
    return static_cast<std::size_t>(std::count_if(all_.begin(), all_.end(), [&](const auto& one) {
      return one.second.is_stranger == strangers;
    }));
  }
  // Ids grow, so the first is the oldest.
  void drop_oldest_stranger() {
    const auto found = std::find_if(all_.begin(), all_.end(),
                                    [](const auto& one) { return one.second.is_stranger; });
    if (found != all_.end()) close(found);
  }
  void close(All::iterator at) {
    const std::uint64_t id = at->first;
    all_.erase(at);
    options_.closed(id);
  }

  // Each returns whether the connection stays open.
  bool write(Connected& to) {
    const auto size = ::send(to.socket.get(), to.out.data() + to.num_out,
                             to.out.size() - to.num_out, MSG_NOSIGNAL);
    if (size < 0) return must_wait(size);
    to.num_out += static_cast<std::size_t>(size);
    return to.num_out < to.out.size() || !to.is_closing;
  }

  // Never reads more than one question: the bytes after one that opens a link are not ours.
  bool read(std::uint64_t id, Connected& from) {
    if (!from.header) {
      const auto size = ::recv(from.socket.get(), from.header_bytes.data() + from.num_header,
                               Header::kBytes - from.num_header, 0);
      if (size <= 0) return must_wait(size);
      from.num_header += static_cast<std::size_t>(size);
      if (from.num_header < Header::kBytes) return true;
      try {
        from.header = Header::decode(from.header_bytes, options_.question_bytes_max);
      } catch (const Error& error) {
        if (error.code() == ErrorCode::data_loss) throw;
        // Another version finds its own error in this answer. Who can read it sees that its
        // question was damaged.
        return reply(
            from,
            {.kind = ReplyKind::refused, .code = ErrorCode::data_loss, .text = error.message()});
      }
      from.body.clear();
      return true;
    }
    std::array<std::byte, kReadBytes> bytes;
    const std::size_t wanted = from.header->body_bytes - from.body.size();
    const auto size = ::recv(from.socket.get(), bytes.data(), std::min(wanted, kReadBytes), 0);
    if (size <= 0) return must_wait(size);
    from.body.insert(from.body.end(), bytes.begin(), bytes.begin() + size);
    if (from.body.size() < from.header->body_bytes) return true;
    return answer(id, from);
  }

  bool answer(std::uint64_t id, Connected& from) {
    from.header->check(from.body);
    const Request request = decode_request(from.body);
    from.header.reset();
    from.num_header = 0;
    std::optional<Reply> answered = options_.answer(request, id, from.socket);
    if (!answered) {
      all_.erase(id);
      return true;
    }
    if (!is_last(answered->kind) && std::exchange(from.is_stranger, false) &&
        count(false) > options_.peers_max) {
      return false;
    }
    return reply(from, *answered);
  }

  bool reply(Connected& to, const Reply& what) {
    to.out = encode(what);
    to.num_out = 0;
    to.is_closing = is_last(what.kind);
    to.expires =
        Clock::system().now() + (to.is_stranger ? Duration(kStrangerTimeout) : kIdleTimeout);
    return write(to);
  }

  const Options options_;
  All all_;
  std::uint64_t next_id_ = 1;
  TimePoint accepts_again_{};
  bool has_warned_ = false;
};

Listener::Listener(std::vector<FileDescriptor> listening, Options options)
    : listening_(std::move(listening)),
      connections_(std::make_unique<Connections>(std::move(options))),
      thread_(start_thread_without_signals("to accept connections of other workers",
                                           [this] { run(); })) {}

Listener::~Listener() {
  is_ending_ = true;
  waker_.wake();
  thread_.join();
}

void Listener::settle() {
  const Lock lock(mutex_);
  const std::uint64_t mine = ++wanted_;
  waker_.wake();
  changed_.wait(mutex_, Deadline::after(kSettleTimeout),
                [&]() COHORT_REQUIRES(mutex_) { return settled_ >= mine; });
}

void Listener::run() noexcept {
  while (!is_ending_) {
    try {
      serve();
    } catch (const std::exception& error) {  // no memory: the next round may have some
      log_debug("[collective.listen] ", error.what());
    }
  }
}

void Listener::serve() {
  std::uint64_t wanted = 0;
  bool must_settle = false;
  {
    const Lock lock(mutex_);
    wanted = wanted_;
    must_settle = wanted != settled_;
  }
  std::vector<pollfd> entries{{waker_.fd(), POLLIN, 0}};
  std::vector<std::uint64_t> ids;
  const short events = connections_->accepts() ? POLLIN : 0;
  for (const FileDescriptor& socket : listening_) entries.push_back({socket.get(), events, 0});
  const std::size_t first = entries.size();
  connections_->add_to(entries, ids);
  const int timeout = must_settle ? 0 : net::poll_milliseconds(connections_->wakes_at());
  ::poll(entries.data(), entries.size(), timeout);
  if (entries.front().revents != 0) waker_.drain();
  const bool has_news = std::any_of(entries.begin() + 1, entries.end(),
                                    [](const pollfd& entry) { return entry.revents != 0; });
  for (std::size_t i = first; i < entries.size(); ++i) {
    if (entries[i].revents != 0) connections_->handle(ids[i - first]);
  }
  for (std::size_t i = 1; i < first; ++i) {
    if ((entries[i].revents & POLLIN) != 0) connections_->accept_from(entries[i].fd);
  }
  connections_->close_expired();
  if (!must_settle || has_news) return;
  const Lock lock(mutex_);
  settled_ = wanted;
  changed_.notify_all();
}

}  // namespace cohort::collective::formation
