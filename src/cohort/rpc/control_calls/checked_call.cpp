// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/control_calls/checked_call.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "cohort/core/address_room.h"
#include "cohort/core/bytes.h"
#include "cohort/core/crc32c.h"
#include "cohort/core/error_bytes.h"

namespace cohort::rpc::internal {
namespace {

constexpr std::size_t kMessageBytesMax = 16384;
// A body above this size does not fit into its Call.
constexpr std::uint64_t kBodyBytesMax = std::numeric_limits<int>::max() - 64;

template <class Number>
std::uint32_t sum_of(Number number, std::uint32_t before) {
  char bytes[sizeof(Number)];
  for (std::size_t i = 0; i < sizeof(Number); ++i) bytes[i] = static_cast<char>(number >> (8 * i));
  return crc32c(std::string_view(bytes, sizeof(Number)), before);
}

std::uint32_t sum_of(const proto::Call& call, std::string_view method) {
  return crc32c(call.body(), sum_of(call.coordinator(), crc32c(method)));
}

std::uint32_t sum_of(const proto::Answer& answer, const proto::Call& call) {
  const std::uint32_t call_sum = sum_of(std::uint32_t{call.checksum()}, 0);
  const auto kind = static_cast<std::uint8_t>(answer.content_case());
  return crc32c(answer.has_error() ? answer.error() : answer.body(), sum_of(kind, call_sum));
}

Error shortened(const Error& error) {
  if (error.message().size() <= kMessageBytesMax) return error;
  Error result(error.code(), std::string(error.message(), 0, kMessageBytesMax).append(" [...]"),
               error.cause());
  std::move(result).at(error.origin(), error.incarnation());
  return result;  // NOLINT(bugprone-use-after-move): the builders change it in place
}

}  // namespace

proto::Call checked_call(std::string_view method, std::uint64_t coordinator, std::string body) {
  COHORT_CHECK(body.size() <= kBodyBytesMax, ErrorCode::invalid_argument,
               "[rpc.control] expected a request of at most ", kBodyBytesMax, " bytes, got ",
               body.size(),
               "; pass large tensors as arguments or as files instead of capturing them");
  proto::Call call;
  call.set_body(std::move(body));
  call.set_coordinator(coordinator);
  call.set_checksum(sum_of(call, method));
  return call;
}

proto::Answer checked_answer(const proto::Call& call, std::string body) {
  proto::Answer answer;
  answer.set_body(std::move(body));
  answer.set_checksum(sum_of(answer, call));
  return answer;
}

proto::Answer checked_answer(const proto::Call& call, const Error& error) {
  ByteWriter out;
  write_error(out, shortened(error));
  proto::Answer answer;
  answer.set_error(out.bytes().data(), out.bytes().size());
  answer.set_checksum(sum_of(answer, call));
  return answer;
}

void check_call_room(std::uint64_t bytes) {
  // The bytes that gRPC has received, the call, its body's message, and the object that is made
  // from that.
  constexpr std::uint64_t kCopies = 4;
  COHORT_CHECK(has_address_room(std::min(bytes, kBodyBytesMax) * kCopies),
               ErrorCode::resource_exhausted, "[rpc.control] expected room for a call of ", bytes,
               " bytes and its copies, got less; ", kAddressRemedy,
               ", or let the workers read data from files in place of sending it to them");
}

bool is_intact(const proto::Call& call, std::string_view method) {
  return call.checksum() == sum_of(call, method);
}

bool is_intact(const proto::Answer& answer, const proto::Call& call) {
  return answer.content_case() != proto::Answer::CONTENT_NOT_SET &&
         answer.checksum() == sum_of(answer, call);
}

Error error_of(const proto::Answer& answer) {
  const std::string& bytes = answer.error();
  ByteReader in(std::as_bytes(std::span(bytes.data(), bytes.size())), "the error of an answer");
  Error error = read_error(in);
  in.expect_end();
  return error;
}

}  // namespace cohort::rpc::internal
