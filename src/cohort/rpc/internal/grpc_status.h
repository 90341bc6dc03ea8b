// SPDX-License-Identifier: Apache-2.0
// The only place where errors become grpc statuses and come back.
#pragma once

#include <grpcpp/support/status.h>

#include <string>
#include <string_view>

#include "cohort/core/error.h"

namespace cohort::rpc::internal {

// The whole error travels in the status's details.
grpc::Status status_of(const Error& error);

// The task that was called, and the operation.
struct GrpcCall {
  std::string_view task;
  std::string_view address;
  std::string_view operation;
};
// The error that the peer threw. If none came: unavailable (peer_lost) if the peer was not reached,
// deadline_exceeded if it did not answer. The origin is the task, unless the peer named another.
Error error_of(const grpc::Status& status, const GrpcCall& call);

}  // namespace cohort::rpc::internal
