// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/error_bytes.h"

#include <string>
#include <utility>

namespace cohort {
namespace {

// More lines than any error has in practice; a broken peer might send millions.
constexpr std::size_t kContextLinesMax = 64;

// A later version may know more codes and causes than this one.
ErrorCode code_of(std::uint8_t byte) {
  const bool is_known = byte >= 1 && byte <= static_cast<std::uint8_t>(ErrorCode::unauthenticated);
  return is_known ? static_cast<ErrorCode>(byte) : ErrorCode::unknown;
}

ErrorCause cause_of(std::uint8_t byte) {
  const bool is_known = byte <= static_cast<std::uint8_t>(ErrorCause::must_restart);
  return is_known ? static_cast<ErrorCause>(byte) : ErrorCause::none;
}

}  // namespace

Error error_in(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (...) {
    return current_error();
  }
}

void write_error(ByteWriter& out, const Error& error) {
  out.u8(static_cast<std::uint8_t>(error.code()));
  out.u8(static_cast<std::uint8_t>(error.cause()));
  out.text(error.message());
  out.text(error.origin());
  out.u64(error.incarnation());
  out.varint(error.context().size());
  for (const std::string& line : error.context()) out.text(line);
}

Error read_error(ByteReader& in) {
  const ErrorCode code = code_of(in.u8());
  const ErrorCause cause = cause_of(in.u8());
  Error error(code, in.text(), cause);
  std::string origin = in.text();
  const std::uint64_t incarnation = in.u64();
  // The builders change `error` in place; what they return is the same object.
  std::move(error).at(std::move(origin), incarnation);
  const std::size_t lines = in.count();
  for (std::size_t i = 0; i < lines; ++i) {
    std::string line = in.text();
    // NOLINTNEXTLINE(bugprone-use-after-move)
    if (i < kContextLinesMax) std::move(error).during(std::move(line));
  }
  return error;  // NOLINT(bugprone-use-after-move)
}

void write_optional_error(ByteWriter& out, const std::optional<Error>& error) {
  out.u8(error ? 1 : 0);
  if (error) write_error(out, *error);
}

std::optional<Error> read_optional_error(ByteReader& in) {
  if (in.u8() == 0) return std::nullopt;
  return read_error(in);
}

}  // namespace cohort
