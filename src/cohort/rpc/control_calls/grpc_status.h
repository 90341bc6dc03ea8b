// SPDX-License-Identifier: Apache-2.0
// Interprets the status of a control call that got no answer. Errors of the called task travel in
// answers (checked_call.h).
#pragma once

#include <grpcpp/support/status.h>

#include <optional>
#include <string_view>

#include "cohort/core/error.h"

namespace cohort::rpc::internal {

// resource_exhausted if this process has no descriptor, thread or address space left for a
// connection to the task: gRPC only reports that the task was not reached. Starts a thread to find
// out.
std::optional<Error> own_lack(std::string_view task, std::string_view address);

// Returns whether broken bytes may be the reason: gRPC reports them, as well as peers that are no
// Cohort tasks, with various codes.
bool may_be_broken(const grpc::Status& status);

// The task that was called, and the operation.
struct GrpcCall {
  std::string_view task;
  std::string_view address;
  std::string_view operation;
  bool has_met = false;  // the task has given an answer before
};
// unavailable (peer_lost) if the task was not reached, deadline_exceeded if it did not answer. For
// other statuses: data_loss (peer_lost) if the task has answered before, else the code of the
// status. The origin is the task.
Error error_of(const grpc::Status& status, const GrpcCall& call);

}  // namespace cohort::rpc::internal
