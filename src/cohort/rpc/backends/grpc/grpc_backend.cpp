// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/backends/grpc/grpc_backend.h"

#include <utility>

#include "cohort/rpc/backends/grpc/grpc_connection.h"
#include "cohort/rpc/control_calls/grpc_setup.h"
#include "cohort/rpc/control_calls/grpc_status.h"
#include "cohort/rpc/frames/connected_channel.h"
#include "cohort/rpc/sockets/connect.h"
#include "frames.grpc.pb.h"

namespace cohort::rpc::backends {
namespace {

using internal::PeerName;

// Either of gRPC's stream classes.
template <class Stream, class Context>
class ByteStreamOf : public ByteStream {
 public:
  ByteStreamOf(Stream& stream, Context& context) : stream_(stream), context_(context) {}

  bool read(std::string& bytes) override {
    if (!stream_.Read(&chunk_)) return false;
    bytes.swap(*chunk_.mutable_data());
    return true;
  }
  bool write(std::string bytes) override {
    proto::Chunk chunk;
    chunk.set_data(std::move(bytes));
    return stream_.Write(chunk);
  }
  void cancel() noexcept override { context_.TryCancel(); }

 private:
  Stream& stream_;
  Context& context_;
  proto::Chunk chunk_;
};

using ServerStream = grpc::ServerReaderWriter<proto::Chunk, proto::Chunk>;
using ClientStream = grpc::ClientReaderWriter<proto::Chunk, proto::Chunk>;

// Its connection runs on its own thread, or on gRPC's if it was accepted. Thread-safe.
class GrpcChannel final : public internal::ConnectedChannel<GrpcConnection> {
 public:
  using ConnectedChannel::ConnectedChannel;
  ~GrpcChannel() override {
    connection_->close();
    connection_->wait_done();
  }

  void start(std::shared_ptr<grpc::Channel> transport) {
    thread_ = internal::start_thread([connection = connection_, transport] {
      grpc::ClientContext context;
      const std::unique_ptr<proto::Frames::Stub> stub = proto::Frames::NewStub(transport);
      const std::unique_ptr<ClientStream> stream = stub->Exchange(&context);
      ByteStreamOf<ClientStream, grpc::ClientContext> bytes(*stream, context);
      connection->run(bytes);
      stream->Finish();
    });
  }
};

// Waits for one attempt to connect.
void wait_connected(grpc::Channel& channel, const PeerName& peer, Deadline deadline) {
  grpc_connectivity_state state = channel.GetState(true);
  while (state != GRPC_CHANNEL_READY) {
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE) {
      if (auto own = internal::own_lack(peer.task, peer.address)) throw Error(*own);
      throw internal::refused_error(peer, "no connection");
    }
    if (!channel.WaitForStateChange(state, internal::grpc_time(deadline)))
      throw internal::expired_error(peer);
    state = channel.GetState(true);
  }
}

}  // namespace

std::shared_ptr<Channel> connect_grpc(const ConnectOptions& options, Channel::Handlers handlers) {
  PeerName peer{options.peer, options.address, "grpc"};
  const net::HostPort where = net::parse_address(options.address);
  const auto found = net::look_up(where, false, options.deadline);
  if (!found || !found->list) throw internal::unresolved_error(peer, found);
  std::shared_ptr<grpc::Channel> transport = internal::open_grpc_channel(where, *found->list);
  wait_connected(*transport, peer, options.deadline);
  auto connection = std::make_shared<GrpcConnection>(std::move(peer), kFrameBytesMax);
  connection->end().set_handlers(std::move(handlers));
  auto channel = std::make_shared<GrpcChannel>(connection);
  try {
    channel->start(std::move(transport));
  } catch (...) {
    connection->abandon();
    throw;
  }
  return channel;
}

// Thread-safe.
class GrpcHost::Frames final : public proto::Frames::Service {
 public:
  Frames(std::size_t frame_bytes_max, AcceptHandler accept, VisitorOf visitor_of)
      : frame_bytes_max_(frame_bytes_max),
        accept_(std::move(accept)),
        visitor_of_(std::move(visitor_of)) {}

  void close_all() noexcept { accepted_.close_all(); }

 private:
  // Runs as the channel's thread; returns when the channel is closed.
  grpc::Status Exchange(grpc::ServerContext* context, ServerStream* stream) override {
    std::shared_ptr<internal::Visitor> visitor = visitor_of_(context->peer());
    PeerName peer{"", visitor ? visitor->address() : context->peer(), "grpc"};
    auto connection = std::make_shared<GrpcConnection>(std::move(peer), frame_bytes_max_);
    connection->end().enter_thread();
    auto channel = std::make_shared<GrpcChannel>(connection, std::move(visitor));
    accepted_.add(channel, channel->is_stranger());
    auto handlers = internal::ask_acceptor(accept_, channel);
    if (!handlers) {
      connection->abandon();  // the acceptor may have kept the channel
      return grpc::Status(grpc::StatusCode::ABORTED, "refused");
    }
    connection->end().set_handlers(std::move(*handlers));
    channel.reset();
    ByteStreamOf<ServerStream, grpc::ServerContext> bytes(*stream, *context);
    connection->run(bytes);
    return grpc::Status::OK;
  }

  const std::size_t frame_bytes_max_;
  const AcceptHandler accept_;
  const VisitorOf visitor_of_;
  internal::AcceptedChannels accepted_;
};

GrpcHost::GrpcHost(AcceptHandler accept, std::size_t stranger_bytes_max, VisitorOf visitor_of)
    : frames_(
          std::make_unique<Frames>(stranger_bytes_max, std::move(accept), std::move(visitor_of))) {}

GrpcHost::~GrpcHost() { close_all(); }
grpc::Service& GrpcHost::service() { return *frames_; }
void GrpcHost::close_all() noexcept { frames_->close_all(); }

}  // namespace cohort::rpc::backends
