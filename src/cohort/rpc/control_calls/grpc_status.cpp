// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/control_calls/grpc_status.h"

#include <sstream>

#include "cohort/core/address_room.h"
#include "cohort/core/system_error.h"
#include "cohort/rpc/frames/channel_end.h"

namespace cohort::rpc::internal {
namespace {

// More than gRPC takes for a connection with its threads.
constexpr std::size_t kConnectionBytes = std::size_t{32} << 20;

template <class... Parts>
Error make_error(ErrorCode code, ErrorCause cause, const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return Error(code, text.str(), cause);
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

std::optional<Error> own_lack(std::string_view task, std::string_view address) {
  std::string problem;
  if (const int lack = lacks_descriptors(); lack != 0) {
    problem = text_of_errno(lack);
  } else if (!has_address_room(kConnectionBytes)) {
    problem = "little address space is left; " + std::string(kAddressRemedy);
  } else {
    try {
      start_thread([] {}).join();
      return std::nullopt;
    } catch (const Error& error) {
      problem = error.message();
    }
  }
  return make_error(ErrorCode::resource_exhausted, ErrorCause::none,
                    "[rpc.control] expected a connection to ", task, " (", address,
                    "), got: ", problem);
}

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
  std::optional<Error> own;
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) own = own_lack(call.task, call.address);
  if (own) return std::move(*own).during(std::string(call.operation));
  Error error = transport_error(status, call);
  std::move(error).at(std::string(call.task)).during(std::string(call.operation));
  return error;  // NOLINT(bugprone-use-after-move): the builders change it in place
}

}  // namespace cohort::rpc::internal
