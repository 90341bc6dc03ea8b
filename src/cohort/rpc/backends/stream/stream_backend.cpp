// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/backends/stream/stream_backend.h"

#include <utility>

#include "cohort/rpc/backends/stream/stream_connection.h"
#include "cohort/rpc/frames/connected_channel.h"
#include "cohort/rpc/sockets/connect.h"

namespace cohort::rpc::backends {
namespace {

using internal::PeerName;

// Thread-safe.
class StreamChannel final : public internal::ConnectedChannel<StreamConnection> {
 public:
  StreamChannel(FileDescriptor socket, PeerName peer, std::size_t frame_bytes_max,
                std::shared_ptr<internal::Visitor> visitor = nullptr)
      : ConnectedChannel(
            std::make_shared<StreamConnection>(std::move(socket), std::move(peer), frame_bytes_max),
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

// Thread-safe.
class StreamBackend final : public Backend {
 public:
  std::string_view name() const override { return "stream"; }

  std::shared_ptr<Channel> connect(const ConnectOptions& options,
                                   Channel::Handlers handlers) override {
    PeerName peer{options.peer, options.address, "stream"};
    FileDescriptor socket = internal::connect_to(peer, options.deadline);
    auto channel =
        std::make_shared<StreamChannel>(std::move(socket), std::move(peer), kFrameBytesMax);
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
  const auto channel = std::make_shared<StreamChannel>(std::move(socket), std::move(peer),
                                                       stranger_bytes_max_, std::move(visitor));
  accepted_.add(channel, channel->is_stranger());
  auto handlers = internal::ask_acceptor(accept_, channel);
  if (handlers) channel->start_accepted(std::move(*handlers));
}

Backend& stream_backend() {
  static StreamBackend& backend = *new StreamBackend;
  return backend;
}

}  // namespace cohort::rpc::backends
