// SPDX-License-Identifier: Apache-2.0
// The settings of Cohort's gRPC servers and clients: no proxies, no size limit, fast reconnects.
#pragma once

#include <grpc/support/time.h>
#include <grpcpp/channel.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/server.h>
#include <netdb.h>

#include <memory>
#include <string>
#include <vector>

#include "cohort/core/clock.h"
#include "cohort/net/host_port.h"

namespace cohort::rpc::internal {

// Serves only connections that are passed to it, without listening.
std::unique_ptr<grpc::Server> start_grpc_server(const std::vector<grpc::Service*>& services);

// Opens a channel whose connection is not shared with other channels; does not connect yet. It will
// connect to one of `addresses`. gRPC resolves no names itself: its resolver waits for dead name
// servers beyond the deadlines of calls, even if /etc/hosts has the name.
std::shared_ptr<grpc::Channel> open_grpc_channel(const net::HostPort& where,
                                                 const addrinfo& addresses);
// The addresses as a target of gRPC: "ipv4:10.0.0.1:4000,10.0.0.2:4000". A target has one family:
// next to IPv6, an IPv4 address is written as the IPv6 address that maps it.
std::string grpc_target_of(const addrinfo& addresses);

gpr_timespec grpc_time(Deadline deadline);

}  // namespace cohort::rpc::internal
