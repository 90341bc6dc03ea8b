// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/sockets/http2_visitors.h"

#include <fcntl.h>
#include <grpcpp/client_context.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/impl/codegen/method_handler.h>
#include <grpcpp/impl/codegen/rpc_service_method.h>
#include <grpcpp/server_posix.h>
#include <grpcpp/support/byte_buffer.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <thread>

#include "cohort/net/name_lookup.h"
#include "cohort/net/socket.h"
#include "cohort/net/waker.h"
#include "cohort/rpc/control_calls/grpc_setup.h"
#include "cohort/testing/channel_fixture.h"

namespace cohort::rpc::internal {
namespace {

using cohort::testing::patience;
using cohort::testing::Promised;

TEST(Http2Visitors, FindsTheNewestOfADescriptor) {
  Http2Visitors visitors;
  const auto first = std::make_shared<Visitor>("127.0.0.1:1", [] {});
  const auto second = std::make_shared<Visitor>("127.0.0.1:2", [] {});
  visitors.add(17, first);
  EXPECT_EQ(visitors.find("fd:17"), first);
  visitors.add(17, second);
  EXPECT_EQ(visitors.find("fd:17"), second);
  for (const char* unknown : {"fd:1", "fd:18", "fd:", "ipv4:127.0.0.1:17", ""})
    EXPECT_EQ(visitors.find(unknown), nullptr) << unknown;
}

ino_t inode_of(int fd) {
  struct stat file {};
  return ::fstat(fd, &file) == 0 ? file.st_ino : 0;
}

constexpr const char* kMethod = "/test.Held/Call";

// Holds a call that continues after its connection has ended.
struct HeldService final : grpc::Service {
  HeldService() {
    using grpc::ByteBuffer;
    AddMethod(new grpc::internal::RpcServiceMethod(
        kMethod, grpc::internal::RpcMethod::NORMAL_RPC,
        new grpc::internal::RpcMethodHandler<HeldService, ByteBuffer, ByteBuffer>(
            [](HeldService* self, grpc::ServerContext* context, const ByteBuffer*, ByteBuffer*) {
              return self->call(*context);
            },
            this)));
  }
  grpc::Status call(const grpc::ServerContext& context) {
    peer = context.peer();
    is_here.set(true);
    const Deadline deadline = patience();
    while (!context.IsCancelled() && !deadline.has_expired()) std::this_thread::yield();
    has_ended.set(context.IsCancelled());
    may_return.wait();
    return grpc::Status::CANCELLED;
  }

  std::string peer;
  Promised<bool> is_here, has_ended, may_return;
};

// If gRPC closed the descriptor earlier, a stranger's connection could get it, and would be
// admitted because of a coordinator's call.
TEST(Http2Visitors, ADescriptorIsNotUsedAgainWhileACallOfItRuns) {
  HeldService service;
  const auto server = start_grpc_server({&service});
  std::string address = "127.0.0.1:0";
  const FileDescriptor listening = net::listen_on(address);
  const net::HostPort where = net::parse_address(address);
  const auto found = net::look_up(where, false, patience());
  ASSERT_TRUE(found && found->list);
  const std::shared_ptr<grpc::Channel> client = open_grpc_channel(where, *found->list);
  std::thread caller([&] {
    grpc::ClientContext context;
    const grpc::internal::RpcMethod method(kMethod, grpc::internal::RpcMethod::NORMAL_RPC);
    const grpc::Slice bytes("?");
    const grpc::ByteBuffer request(&bytes, 1);
    grpc::ByteBuffer reply;
    grpc::internal::BlockingUnaryCall(client.get(), method, &context, request, &reply);
  });
  pollfd entry{listening.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, net::poll_milliseconds(patience())), 1);
  FileDescriptor accepted(::accept4(listening.get(), nullptr, nullptr, SOCK_NONBLOCK));
  const FileDescriptor duplicate(::fcntl(accepted.get(), F_DUPFD_CLOEXEC, 0));
  const int descriptor = accepted.get();
  const ino_t inode = inode_of(descriptor);
  grpc::AddInsecureChannelFromFd(server.get(), accepted.release());
  service.is_here.wait();
  EXPECT_EQ(service.peer, "fd:" + std::to_string(descriptor));
  ::shutdown(duplicate.get(), SHUT_RDWR);
  EXPECT_TRUE(service.has_ended.wait());
  caller.join();
  EXPECT_EQ(inode_of(descriptor), inode) << "gRPC has closed it";
  service.may_return.set(true);
  const Deadline deadline = patience();
  while (inode_of(descriptor) == inode && !deadline.has_expired()) std::this_thread::yield();
  EXPECT_NE(inode_of(descriptor), inode) << "gRPC keeps it";
}

}  // namespace
}  // namespace cohort::rpc::internal
