// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/internal/grpc_status.h"

#include <optional>
#include <sstream>

#include "cohort/core/detail/system_error.h"

namespace cohort::rpc::internal {
namespace {

template <class... Parts>
Error make_error(ErrorCode code, ErrorCause cause, const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return Error(code, text.str(), cause);
}

// gRPC does not report that this process lacked a descriptor, which is not the task's fault.
std::optional<Error> own_lack(const grpc::Status& status, const GrpcCall& call) {
  if (status.error_code() != grpc::StatusCode::UNAVAILABLE) return std::nullopt;
  const int lack = lacks_descriptors();
  if (lack == 0) return std::nullopt;
  return make_error(ErrorCode::resource_exhausted, ErrorCause::none,
                    "[rpc.control] expected a connection to ", call.task, " (", call.address,
                    "), got: ", text_of_errno(lack));
}

Error transport_error(const grpc::Status& status, const GrpcCall& call) {
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::CANCELLED:  // by the server, or by ControlClient::cancel()
      return make_error(ErrorCode::unavailable, ErrorCause::peer_lost, "[rpc.control] expected ",
                        call.task, " (", call.address, ") to answer, got: ", status.error_message(),
                        "; is the task running, and is this its address?");
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return make_error(ErrorCode::deadline_exceeded, ErrorCause::none,
                        "[rpc.control] expected an answer from ", call.task, " (", call.address,
                        ") before the deadline, got none");
    default:
      if (call.has_met) {
        return make_error(ErrorCode::data_loss, ErrorCause::peer_lost, "[rpc.control] expected ",
                          call.task, " (", call.address,
                          ") to answer as it did before, got: ", status.error_message(),
                          "; the connection to it corrupts data, or another program listens there");
      }
      return make_error(static_cast<ErrorCode>(status.error_code()), ErrorCause::none,
                        "[rpc.control] expected ", call.task, " (", call.address,
                        ") to be a Cohort task, got: ", status.error_message(),
                        "; see whether this is its address, and run the same Cohort on every task");
  }
}

}  // namespace

bool may_be_broken(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return false;
    default:
      return true;
  }
}

Error error_of(const grpc::Status& status, const GrpcCall& call) {
  std::optional<Error> own = own_lack(status, call);
  if (own) return std::move(*own).during(std::string(call.operation));
  Error error = transport_error(status, call);
  std::move(error).at(std::string(call.task)).during(std::string(call.operation));
  return error;  // NOLINT(bugprone-use-after-move): the builders change it in place
}

}  // namespace cohort::rpc::internal
