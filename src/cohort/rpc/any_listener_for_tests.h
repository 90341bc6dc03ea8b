// SPDX-License-Identifier: Apache-2.0
// Listeners of each backend without a task's server.
#pragma once

#include <grpcpp/server_posix.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "cohort/rpc/backends/grpc/grpc_backend.h"
#include "cohort/rpc/control_calls/grpc_setup.h"
#include "cohort/rpc/sockets/http2_visitors.h"
#include "cohort/rpc/stream_listener_for_tests.h"

namespace cohort::testing {

// A gRPC server that serves frames alone.
struct GrpcFrames {
  GrpcFrames(rpc::AcceptHandler accept, std::size_t frame_bytes_max)
      : host(std::move(accept), frame_bytes_max,
             [this](const std::string& peer) { return visitors.find(peer); }),
        server(rpc::internal::start_grpc_server({&host.service()})) {}
  ~GrpcFrames() {
    host.close_all();
    server->Shutdown(rpc::internal::grpc_time(Deadline::after(Duration::zero())));
  }
  void take(FileDescriptor socket, std::shared_ptr<rpc::internal::Visitor> visitor) {
    visitors.add(socket.get(), std::move(visitor));
    grpc::AddInsecureChannelFromFd(server.get(), socket.release());
  }

  rpc::internal::Http2Visitors visitors;
  rpc::backends::GrpcHost host;
  std::unique_ptr<grpc::Server> server;
};

inline std::string any_address(std::string_view backend) {
  return backend == "inprocess" ? "" : "127.0.0.1:0";
}

inline std::unique_ptr<rpc::Listener> listen_on(std::string_view backend, std::string address,
                                                rpc::AcceptHandler accept,
                                                std::size_t frame_bytes_max = rpc::kFrameBytesMax) {
  if (backend == "inprocess") return rpc::listen_inprocess(std::move(address), std::move(accept));
  if (backend == "stream")
    return listen_on_stream(std::move(accept), std::move(address), frame_bytes_max);
  return std::make_unique<SocketListener>(
      std::move(address),
      [frames = std::make_shared<GrpcFrames>(std::move(accept), frame_bytes_max)](
          auto socket, auto visitor) { frames->take(std::move(socket), std::move(visitor)); });
}
inline std::unique_ptr<rpc::Listener> listen_on(std::string_view backend,
                                                rpc::AcceptHandler accept) {
  return listen_on(backend, any_address(backend), std::move(accept));
}

}  // namespace cohort::testing
