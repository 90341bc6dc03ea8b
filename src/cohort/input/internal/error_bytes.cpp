// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/internal/error_bytes.h"

#include <string>
#include <utility>

namespace cohort::input {

Error error_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (...) {
    return current_error();
  }
}

void write_error(ByteWriter& writer, const Error& error) {
  writer.u8(static_cast<std::uint8_t>(error.code()));
  writer.u8(static_cast<std::uint8_t>(error.cause()));
  writer.text(error.message());
  writer.varint(error.context().size());
  for (const std::string& line : error.context()) writer.text(line);
}

Error read_error(ByteReader& reader) {
  const std::uint8_t code = reader.u8();
  const std::uint8_t cause = reader.u8();
  if (code < static_cast<std::uint8_t>(ErrorCode::cancelled) ||
      code > static_cast<std::uint8_t>(ErrorCode::unauthenticated) ||
      cause > static_cast<std::uint8_t>(ErrorCause::application)) {
    reader.fail("an error's code and cause");
  }
  Error error(static_cast<ErrorCode>(code), reader.text(), static_cast<ErrorCause>(cause));
  for (std::size_t left = reader.count(); left > 0; --left) {
    // NOLINTNEXTLINE(bugprone-use-after-move): during() adds in place
    static_cast<void>(std::move(error).during(reader.text()));
  }
  return error;
}

}  // namespace cohort::input
