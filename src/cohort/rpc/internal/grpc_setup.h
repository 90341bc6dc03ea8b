// SPDX-License-Identifier: Apache-2.0
// How our gRPC servers and clients are set up: no port sharing, no proxies, no size limit, quick to
// try again.
#pragma once

#include <grpc/support/time.h>
#include <grpcpp/channel.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/server.h>

#include <memory>
#include <string>
#include <vector>

#include "cohort/core/clock.h"

namespace cohort::rpc::internal {

// Serves on exactly this address and puts the chosen port into it. already_exists when the port is
// taken, invalid_argument when the address is not this machine's.
std::unique_ptr<grpc::Server> start_grpc_server(std::string& address, grpc::Service& service);

// Serves on connections that are given to it, and listens nowhere.
std::unique_ptr<grpc::Server> start_grpc_server(const std::vector<grpc::Service*>& services);

// Shares its connection with no other; does not connect yet.
std::shared_ptr<grpc::Channel> open_grpc_channel(const std::string& address);

enum class GrpcConnect { connected, refused, expired };
// Waits for one attempt.
GrpcConnect wait_connected(grpc::Channel& channel, Deadline deadline);

gpr_timespec grpc_time(Deadline deadline);

// Of each control call: which start of the coordinator it comes from.
inline constexpr const char* kCoordinatorMetadata = "cohort-coordinator";

}  // namespace cohort::rpc::internal
