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
#include "cohort/core/system_error.h"
#include "cohort/net/socket.h"
#include "cohort/net/waker.h"
#include "cohort/rpc/backends/stream/stream_connection.h"
#include "cohort/rpc/frames/connected_channel.h"
#include "cohort/rpc/refusal_log.h"
#include "cohort/rpc/sockets/connect.h"

namespace cohort::rpc::backends {
namespace {

using internal::PeerName;

// Thread-safe.
class StreamChannel final : public internal::ConnectedChannel<StreamConnection> {
 public:
  StreamChannel(FileDescriptor socket, PeerName peer, StreamOptions options,
                std::shared_ptr<internal::Visitor> visitor = nullptr)
      : ConnectedChannel(
            std::make_shared<StreamConnection>(std::move(socket), std::move(peer), options),
            std::move(visitor)) {}

  ~StreamChannel() override {
    connection_->close();
    end_thread();
  }

  void start(Handlers handlers) {
    thread_ = internal::start_channel_thread(connection_->end(), std::move(handlers),
                                             [connection = connection_] { connection->run(); });
  }

  // The peer gets the error as the reason if it throws. Without that, it would see a closed
  // connection, as if nobody listened at this address.
  void start_accepted(Handlers handlers) {
    try {
      start(std::move(handlers));
    } catch (...) {
      connection_->take_leave(current_error());
      throw;
    }
  }
};

void start_accepted(const std::shared_ptr<StreamChannel>& channel, const AcceptHandler& accept,
                    internal::AcceptedChannels& accepted) {
  accepted.add(channel, channel->is_stranger());
  auto handlers = internal::ask_acceptor(accept, channel);
  if (handlers) channel->start_accepted(std::move(*handlers));
}

// Thread-safe.
class StreamListener final : public Listener {
 public:
  StreamListener(const ListenOptions& options, AcceptHandler accept)
      : options_(options), accept_(std::move(accept)), socket_(net::listen_on(options_.address)) {
    thread_ = internal::start_thread([this] { run(); });
  }

  ~StreamListener() override {
    is_stopped_ = true;
    waker_.wake();
    thread_.join();
    failures_.finish();
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
    PeerName peer{"", net::remote_address(socket.get()), "stream"};
    auto channel = std::make_shared<StreamChannel>(
        std::move(socket), std::move(peer), StreamOptions{options_.frame_bytes_max, options_.spin});
    start_accepted(channel, accept_, accepted_);
  }

  // A connection that its peer closed before accept4() is no failure. Without descriptors or
  // memory, an immediate retry would only burn a core.
  void wait_after_failure(int error) {
    if (error == EAGAIN || error == ECONNABORTED || error == EINTR) return;
    failures_.note("on " + options_.address, text_of_errno(error));
    pollfd entry{waker_.fd(), POLLIN, 0};
    poll(&entry, 1, 100);
  }

  ListenOptions options_;
  AcceptHandler accept_;
  FileDescriptor socket_;
  net::Waker waker_;
  std::atomic<bool> is_stopped_{false};
  RefusalLog failures_{Clock::system(), "cannot accept"};
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
