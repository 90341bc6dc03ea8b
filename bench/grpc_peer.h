// SPDX-License-Identifier: Apache-2.0
// What a plain gRPC program does: unary calls of raw bytes over completion queues, without an IDL's
// copies; the server is a process of its own, started from the same program.
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

// True when this process was started as the server: it has served until its parent ended.
bool served_as_peer(int argc, char** argv, const PeerHandler& handler);

// Used from one thread.
class GrpcPeer {
 public:
  // Starts this program again as the server, and connects.
  GrpcPeer();
  ~GrpcPeer();
  GrpcPeer(const GrpcPeer&) = delete;
  GrpcPeer& operator=(const GrpcPeer&) = delete;

  // One call, waited for.
  grpc::ByteBuffer call(const grpc::ByteBuffer& request);
  // `count` calls, `depth` of them in flight; on_reply sees the number of each call.
  void call_many(std::size_t count, std::size_t depth,
                 const std::function<grpc::ByteBuffer(std::size_t)>& request,
                 const std::function<void(std::size_t, grpc::ByteBuffer)>& on_reply);

 private:
  int pid_ = -1;
  std::unique_ptr<grpc::GenericStub> stub_;
  grpc::CompletionQueue queue_;
};

// Bytes as one buffer (copied), and the other way round (not copied when they came in one piece).
grpc::ByteBuffer buffer_of(const void* data, std::size_t size);
grpc::Slice slice_of(const grpc::ByteBuffer& buffer);

}  // namespace cohort::bench
