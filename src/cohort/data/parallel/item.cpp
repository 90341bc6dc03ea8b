// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/parallel/item.h"

#include "cohort/core/error_bytes.h"
#include "cohort/core/string_tensor.h"

namespace cohort::data {

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
