// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/internal/grpc_status.h"

#include <optional>
#include <sstream>

#include "cohort/core/detail/error_bytes.h"
#include "cohort/core/detail/system_error.h"

namespace cohort::rpc::internal {
namespace {

// Statuses travel as HTTP/2 headers, whose size is limited.
constexpr std::size_t kMessageBytesMax = 16384;
constexpr std::size_t kStatusTextBytesMax = 512;

static_assert(static_cast<int>(ErrorCode::cancelled) == grpc::StatusCode::CANCELLED);
static_assert(static_cast<int>(ErrorCode::unauthenticated) == grpc::StatusCode::UNAUTHENTICATED);

Error shortened(const Error& error) {
  if (error.message().size() <= kMessageBytesMax) return error;
  Error result(error.code(), std::string(error.message(), 0, kMessageBytesMax).append(" [...]"),
               error.cause());
  std::move(result).at(error.origin(), error.incarnation());
  return result;  // NOLINT(bugprone-use-after-move): the builders change it in place
}

std::optional<Error> carried_error(const grpc::Status& status) {
  const std::string details = status.error_details();
  if (details.empty()) return std::nullopt;
  try {
    ByteReader in(std::as_bytes(std::span(details.data(), details.size())), "status details");
    Error error = read_error(in);
    in.expect_end();
    return error;
  } catch (const Error&) {
    return std::nullopt;  // not written by Cohort
  }
}

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
      return make_error(static_cast<ErrorCode>(status.error_code()), ErrorCause::none,
                        "[rpc.control] expected ", call.task, " (", call.address,
                        ") to be a Cohort task, got: ", status.error_message());
  }
}

}  // namespace

grpc::Status status_of(const Error& error) {
  const Error sent = shortened(error);
  ByteWriter details;
  write_error(details, sent);
  const Bytes& bytes = details.bytes();
  return grpc::Status(static_cast<grpc::StatusCode>(sent.code()),
                      sent.message().substr(0, kStatusTextBytesMax),
                      std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

Error error_of(const grpc::Status& status, const GrpcCall& call) {
  std::optional<Error> carried = carried_error(status);
  if (!carried) {
    if (std::optional<Error> own = own_lack(status, call))
      return std::move(*own).during(std::string(call.operation));
  }
  Error error = carried ? std::move(*carried) : transport_error(status, call);
  if (error.origin().empty()) std::move(error).at(std::string(call.task));
  // NOLINTNEXTLINE(bugprone-use-after-move): the builders change it in place
  std::move(error).during(std::string(call.operation));
  return error;  // NOLINT(bugprone-use-after-move)
}

}  // namespace cohort::rpc::internal
