// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/backends/stream/stream_backend.h"

#include <utility>

#include "cohort/rpc/backends/stream/stream_connection.h"
#include "cohort/rpc/frames/connected_channel.h"
#include "cohort/rpc/sockets/connect.h"

namespace cohort::rpc::backends {
namespace {

using internal::PeerName;
using StreamChannel = internal::ConnectedChannel<StreamConnection>;

}  // namespace

std::shared_ptr<Channel> connect_stream(const ConnectOptions& options, Channel::Handlers handlers) {
  PeerName peer{options.peer, options.address, "stream"};
  FileDescriptor socket = internal::connect_to(peer, options.deadline);
  auto channel = std::make_shared<StreamChannel>(
      std::make_shared<StreamConnection>(std::move(socket), std::move(peer), kFrameBytesMax));
  channel->start(std::move(handlers));
  return channel;
}

void StreamHost::take(FileDescriptor socket, std::shared_ptr<internal::Visitor> visitor) {
  PeerName peer{"", visitor->address(), "stream"};
  const auto connection =
      std::make_shared<StreamConnection>(std::move(socket), std::move(peer), stranger_bytes_max_);
  const auto channel = std::make_shared<StreamChannel>(connection, std::move(visitor));
  accepted_.add(channel, channel->is_stranger());
  auto handlers = internal::ask_acceptor(accept_, channel);
  if (!handlers) return;
  try {
    channel->start(std::move(*handlers));
  } catch (...) {
    // The peer gets the error as the reason. Without that, it would see a closed connection, as if
    // nobody listened at this address.
    connection->take_leave(current_error());
    throw;
  }
}

}  // namespace cohort::rpc::backends
