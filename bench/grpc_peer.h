// SPDX-License-Identifier: Apache-2.0
// A plain gRPC program for comparison: unary calls of raw bytes over completion queues, without the
// copies of protobuf. The server is a separate process of the same program.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace cohort::bench {

// Answers one request; called from the server's one thread.
using PeerHandler = std::function<grpc::ByteBuffer(const grpc::ByteBuffer& request)>;

// If this process was started as the server, serves until its parent ends and returns true.
bool served_as_peer(int argc, char** argv, const PeerHandler& handler);

// Used from one thread.
class GrpcPeer {
 public:
  // Starts this program again as the server, and connects.
  GrpcPeer();
  ~GrpcPeer();
  GrpcPeer(const GrpcPeer&) = delete;
  GrpcPeer& operator=(const GrpcPeer&) = delete;

  // Makes one call and waits for the reply.
  grpc::ByteBuffer call(const grpc::ByteBuffer& request);
  // Makes `count` calls, `depth` of them in flight; on_reply gets the number of each call.
  void call_many(std::size_t count, std::size_t depth,
                 const std::function<grpc::ByteBuffer(std::size_t)>& request,
                 const std::function<void(std::size_t, grpc::ByteBuffer)>& on_reply);

 private:
  int pid_ = -1;
  std::unique_ptr<grpc::GenericStub> stub_;
  grpc::CompletionQueue queue_;
};

// Converts bytes to a buffer (copies), and a buffer to one slice (copies only if it has several).
grpc::ByteBuffer buffer_of(const void* data, std::size_t size);
grpc::Slice slice_of(const grpc::ByteBuffer& buffer);

}  // namespace cohort::bench
