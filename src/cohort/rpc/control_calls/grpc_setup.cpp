// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/control_calls/grpc_setup.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/server_builder.h>

#include <chrono>

#include "cohort/core/error.h"
#include "cohort/core/once.h"
#include "cohort/net/socket.h"
#include "cohort/rpc/process_room.h"

namespace cohort::rpc::internal {
namespace {

constexpr int kKeepaliveMilliseconds = 20'000;
constexpr int kCallsMax = 128;  // per connection at a time

// Called before gRPC starts, which ends the process, or hangs at its end, if it gets too few
// threads or descriptors.
void check_grpc_has_room() {
  static Once once;
  once.call([] {
    check_descriptor_room(2 * kGrpcDescriptors);  // other threads may open some meanwhile
    rpc::check_thread_room(kGrpcThreads);
  });
}

}  // namespace

gpr_timespec grpc_time(Deadline deadline) {
  if (deadline.is_infinite()) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
  const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline.remaining());
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_nanos(left.count(), GPR_TIMESPAN));
}

std::unique_ptr<grpc::Server> start_grpc_server(const std::vector<grpc::Service*>& services) {
  check_grpc_has_room();
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kCallsMax);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kKeepaliveMilliseconds / 2);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMilliseconds);
  builder.SetMaxReceiveMessageSize(-1);
  builder.SetMaxSendMessageSize(-1);
  for (grpc::Service* service : services) builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  COHORT_CHECK(server != nullptr, ErrorCode::internal,
               "[rpc.listen] expected gRPC to serve, got a failure");
  return server;
}

std::string grpc_target_of(const addrinfo& addresses) {
  bool has_v6 = false;
  for (const addrinfo* one = &addresses; one != nullptr; one = one->ai_next)
    has_v6 = has_v6 || one->ai_family == AF_INET6;
  std::string target;
  for (const addrinfo* one = &addresses; one != nullptr; one = one->ai_next) {
    net::HostPort number = net::numeric_address(*one);
    if (has_v6 && one->ai_family == AF_INET) number.host = "::ffff:" + number.host;
    std::string text = number.to_string();
    const std::size_t zone = text.find('%');  // "fe80::1%eth0", in a URI
    if (zone != std::string::npos) text.insert(zone + 1, "25");
    target += (target.empty() ? (has_v6 ? "ipv6:" : "ipv4:") : ",") + text;
  }
  return target;
}

std::shared_ptr<grpc::Channel> open_grpc_channel(const net::HostPort& where,
                                                 const addrinfo& addresses) {
  check_grpc_has_room();
  grpc::ChannelArguments arguments;
  arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, where.to_string());
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // gRPC must not repeat calls by itself: some may not run twice. Its code for that also ends the
  // process (an assertion) if broken bytes leave an answer without a status.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
                   5000);  // in fact the timeout of one attempt
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMilliseconds);
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  return grpc::CreateCustomChannel(grpc_target_of(addresses), grpc::InsecureChannelCredentials(),
                                   arguments);
}

}  // namespace cohort::rpc::internal
