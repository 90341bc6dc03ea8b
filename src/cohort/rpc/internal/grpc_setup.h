// SPDX-License-Identifier: Apache-2.0
// The settings of Cohort's gRPC servers and clients: no port sharing, no proxies, no size limit,
// fast reconnects.
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

// Serves on exactly this address and writes the chosen port into it. already_exists for a port in
// use, invalid_argument for an address of another machine.
std::unique_ptr<grpc::Server> start_grpc_server(std::string& address, grpc::Service& service);

// Serves only connections that are given to it, without listening.
std::unique_ptr<grpc::Server> start_grpc_server(const std::vector<grpc::Service*>& services);

// Its connection is not shared with other channels; does not connect yet.
std::shared_ptr<grpc::Channel> open_grpc_channel(const std::string& address);

enum class GrpcConnect { connected, refused, expired };
// Waits for one attempt.
GrpcConnect wait_connected(grpc::Channel& channel, Deadline deadline);

gpr_timespec grpc_time(Deadline deadline);

// The metadata key of each control call; the value is the coordinator's incarnation.
inline constexpr const char* kCoordinatorMetadata = "cohort-coordinator";

}  // namespace cohort::rpc::internal
