// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/iterators/step_status.h"

#include <string>
#include <utility>

#include "cohort/core/error_bytes.h"

namespace cohort::input {
namespace {

void add(const Bytes& bytes, const std::string& member, StepStatus& sum) {
  ByteReader reader(bytes, "status of a step");
  sum.components += reader.zigzag();
  sum.examples += reader.zigzag();
  if (reader.u8() != 0) sum.costs_batch = true;
  std::optional<Error> error = read_optional_error(reader);
  if (error && !sum.error) sum.error = std::move(*error).at(member);
}

}  // namespace

Bytes encode(const StepStatus& status) {
  ByteWriter writer;
  writer.zigzag(status.components);
  writer.zigzag(status.examples);
  writer.u8(status.costs_batch ? 1 : 0);
  write_optional_error(writer, status.error);
  return writer.take();
}

StepStatus sum_of(const std::vector<Bytes>& all, const collective::Group& group) {
  StepStatus sum;
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    add(all[rank], group.member_name(static_cast<int>(rank)), sum);
  return sum;
}

}  // namespace cohort::input
