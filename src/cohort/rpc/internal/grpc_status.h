// SPDX-License-Identifier: Apache-2.0
// Converts errors to grpc statuses and back; no other file does.
#pragma once

#include <grpcpp/support/status.h>

#include <string>
#include <string_view>

#include "cohort/core/error.h"

namespace cohort::rpc::internal {

// The details of the status contain the whole error.
grpc::Status status_of(const Error& error);

// The task that was called, and the operation.
struct GrpcCall {
  std::string_view task;
  std::string_view address;
  std::string_view operation;
};
// The error that the peer threw. If there is none: unavailable (peer_lost) if the peer was not
// reached, deadline_exceeded if it did not answer. The origin is the task, unless the peer named
// another.
Error error_of(const grpc::Status& status, const GrpcCall& call);

}  // namespace cohort::rpc::internal
