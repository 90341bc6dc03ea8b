// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/impl/service_type.h>

#include <functional>
#include <memory>
#include <string>

#include "cohort/rpc/channel.h"
#include "cohort/rpc/sockets/acceptor.h"

namespace cohort::rpc::backends {

// Frames in chunks over a gRPC stream: slower, for networks where only gRPC passes.
std::shared_ptr<Channel> connect_grpc(const ConnectOptions& options, Channel::Handlers handlers);

// Channels over streams of an existing gRPC server; closes them when destroyed. Thread-safe.
class GrpcHost {
 public:
  // Finds the visitor by gRPC's name for a stream's peer.
  using VisitorOf = std::function<std::shared_ptr<internal::Visitor>(const std::string& grpc_peer)>;

  // `stranger_bytes_max`: the largest frame before the channel's admit().
  GrpcHost(AcceptHandler accept, std::size_t stranger_bytes_max, VisitorOf visitor_of);
  ~GrpcHost();
  GrpcHost(const GrpcHost&) = delete;
  GrpcHost& operator=(const GrpcHost&) = delete;
  // Must outlive the server that it is registered with.
  grpc::Service& service();
  void close_all() noexcept;

 private:
  class Frames;
  std::unique_ptr<Frames> frames_;
};

}  // namespace cohort::rpc::backends
