// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/internal/parallel/item.h"

#include "cohort/core/error.h"
#include "cohort/core/string_tensor.h"
#include "cohort/data/internal/nest_codec.h"

namespace cohort::data {
namespace {

Error error_in(const std::exception_ptr& error) {
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
  writer.text(error.origin());
  writer.varint(error.incarnation());
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
  const std::string origin = reader.text();
  const std::uint64_t incarnation = reader.varint();
  // The builders change `error` itself: what they return must not be assigned to it.
  if (!origin.empty()) static_cast<void>(std::move(error).at(origin, incarnation));
  for (std::size_t left = reader.count(); left > 0; --left) {
    static_cast<void>(std::move(error).during(reader.text()));  // NOLINT(bugprone-use-after-move)
  }
  return error;
}

}  // namespace

std::size_t Item::byte_count() const {
  std::size_t bytes = 0;
  for (const at::Tensor& field : fields) bytes += cohort::byte_count(field);
  return bytes;
}

Fields Item::take() && {
  if (error) std::rethrow_exception(error);
  return std::move(fields);
}

void write_item(ByteWriter& writer, const Item& item) {
  writer.u8(item.error ? 1 : 0);
  if (item.error) return write_error(writer, error_in(item.error));
  write_fields(writer, item.fields);
}

Item read_item(ByteReader& reader) {
  if (reader.u8() != 0) return {.error = std::make_exception_ptr(read_error(reader))};
  return {.fields = read_fields(reader)};
}

}  // namespace cohort::data
