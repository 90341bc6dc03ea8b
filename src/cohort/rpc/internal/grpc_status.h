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

// Who was called, for what.
struct GrpcCall {
  std::string_view task;
  std::string_view address;
  std::string_view operation;
};
// The error the peer threw, or what its absence means: unavailable and peer_lost when it could not
// be reached, deadline_exceeded when it did not answer. The origin is the task, unless the peer
// named another.
Error error_of(const grpc::Status& status, const GrpcCall& call);

}  // namespace cohort::rpc::internal
