// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/backends/stream/stream_backend.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <thread>
#include <utility>

#include "cohort/core/log.h"
#include "cohort/rpc/backends/stream/stream_connection.h"

namespace cohort::rpc::backends {
namespace {

using internal::FileDescriptor;
using internal::PeerName;

// Thread-safe.
class StreamChannel final : public Channel {
 public:
  // `visitor`: where it is a stranger's until admit().
  StreamChannel(FileDescriptor socket, PeerName peer, StreamOptions options,
                std::shared_ptr<internal::Visitor> visitor = nullptr)
      : connection_(
            std::make_shared<StreamConnection>(std::move(socket), std::move(peer), options)),
        visitor_(std::move(visitor)) {}

  ~StreamChannel() override {
    connection_->close();
    if (!thread_.joinable()) return;
    if (connection_->end().is_own_thread()) {
      thread_
          .detach();  // it owns the connection, and ends after the handler that we are called from
    } else {
      thread_.join();
    }
  }

  void start(Handlers handlers) {
    connection_->end().set_handlers(std::move(handlers));
    thread_ = internal::start_thread([connection = connection_] { connection->run(); });
  }

  void send(Frame frame) override { connection_->send(std::move(frame)); }
  void close() noexcept override { connection_->close(); }
  std::size_t queued_bytes() const override { return connection_->queued_bytes(); }
  const std::string& peer() const override { return connection_->end().text(); }
  bool is_on_one_host() const override {
    return internal::is_this_host(connection_->end().name().address);
  }
  void set_payload_checksums(bool are_on) noexcept override {
    connection_->set_payload_checksums(are_on);
  }
  void admit() override {
    if (!visitor_) return;
    connection_->set_frame_bytes_max(ListenOptions().frame_bytes_max);
    visitor_->admit();
  }

 private:
  // Shared with the thread, which outlives this object when a handler drops the last handle.
  std::shared_ptr<StreamConnection> connection_;
  const std::shared_ptr<internal::Visitor> visitor_;
  std::thread thread_;
};

void start_accepted(const std::shared_ptr<StreamChannel>& channel, const AcceptHandler& accept,
                    internal::AcceptedChannels& accepted) {
  accepted.add(channel);
  auto handlers = internal::ask_acceptor(accept, channel);
  if (handlers) channel->start(std::move(*handlers));
}

// Thread-safe.
class StreamListener final : public Listener {
 public:
  StreamListener(const ListenOptions& options, AcceptHandler accept)
      : options_(options),
        accept_(std::move(accept)),
        socket_(internal::listen_on(options_.address)) {
    thread_ = internal::start_thread([this] { run(); });
  }

  ~StreamListener() override {
    is_stopped_ = true;
    waker_.wake();
    thread_.join();
    accepted_.close_all();
  }

  const std::string& address() const override { return options_.address; }

 private:
  void run() noexcept {
    while (!is_stopped_) {
      std::array<pollfd, 2> entries{pollfd{socket_.get(), POLLIN, 0},
                                    pollfd{waker_.fd(), POLLIN, 0}};
      if (poll(entries.data(), entries.size(), -1) <= 0 || is_stopped_) continue;
      try {
        accept_one();
      } catch (...) {
        log_error("accepting on ", options_.address, " failed: ", current_error().what());
      }
    }
  }

  void accept_one() {
    FileDescriptor socket(accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.is_open()) return wait_after_failure(errno);
    PeerName peer{"", internal::remote_address(socket.get()), "stream"};
    auto channel = std::make_shared<StreamChannel>(
        std::move(socket), std::move(peer), StreamOptions{options_.frame_bytes_max, options_.spin});
    start_accepted(channel, accept_, accepted_);
  }

  // A connection that is gone again is nothing; without descriptors or memory, trying at once would
  // only burn a core.
  void wait_after_failure(int error) {
    if (error == EAGAIN || error == ECONNABORTED || error == EINTR) return;
    log_warn("cannot accept on ", options_.address, ": error ", error);
    pollfd entry{waker_.fd(), POLLIN, 0};
    poll(&entry, 1, 100);
  }

  ListenOptions options_;
  AcceptHandler accept_;
  FileDescriptor socket_;
  internal::Waker waker_;
  std::atomic<bool> is_stopped_{false};
  internal::AcceptedChannels accepted_;
  std::thread thread_;
};

// Thread-safe.
class StreamBackend final : public Backend {
 public:
  std::string_view name() const override { return "stream"; }

  std::unique_ptr<Listener> listen(const ListenOptions& options, AcceptHandler accept) override {
    return std::make_unique<StreamListener>(options, std::move(accept));
  }

  std::shared_ptr<Channel> connect(const ConnectOptions& options,
                                   Channel::Handlers handlers) override {
    PeerName peer{options.peer, options.address, "stream"};
    FileDescriptor socket = internal::connect_to(peer, options.deadline);
    auto channel = std::make_shared<StreamChannel>(
        std::move(socket), std::move(peer), StreamOptions{options.frame_bytes_max, options.spin});
    channel->start(std::move(handlers));
    return channel;
  }
};

}  // namespace

StreamHost::StreamHost(AcceptHandler accept, std::size_t stranger_bytes_max)
    : accept_(std::move(accept)), stranger_bytes_max_(stranger_bytes_max) {}

StreamHost::~StreamHost() { accepted_.close_all(); }

void StreamHost::take(FileDescriptor socket, std::shared_ptr<internal::Visitor> visitor) {
  PeerName peer{"", visitor->address(), "stream"};
  start_accepted(std::make_shared<StreamChannel>(std::move(socket), std::move(peer),
                                                 StreamOptions{stranger_bytes_max_, Duration()},
                                                 std::move(visitor)),
                 accept_, accepted_);
}

Backend& stream_backend() {
  static StreamBackend& backend = *new StreamBackend;
  return backend;
}

}  // namespace cohort::rpc::backends
