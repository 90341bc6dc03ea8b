// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/internal/step_status.h"

#include <string>
#include <vector>

#include "cohort/core/detail/error_bytes.h"

namespace cohort::input {
namespace {

Bytes encode(const StepStatus& status) {
  ByteWriter writer;
  writer.zigzag(status.components);
  writer.zigzag(status.examples);
  writer.u8(status.costs_batch ? 1 : 0);
  writer.u8(status.error ? 1 : 0);
  if (status.error) write_error(writer, *status.error);
  return writer.take();
}

void add(const Bytes& bytes, std::size_t rank, StepStatus& sum) {
  ByteReader reader(bytes, "status of a step");
  sum.components += reader.zigzag();
  sum.examples += reader.zigzag();
  if (reader.u8() != 0) sum.costs_batch = true;
  if (reader.u8() != 0 && !sum.error) {
    sum.error = read_error(reader).at("worker:" + std::to_string(rank));
  }
}

}  // namespace

StepStatus reduce_status(collective::Group& group, const StepStatus& mine, Deadline deadline) {
  const std::vector<Bytes> all =
      group.exchange(encode(mine), "the data of the next step", deadline);
  StepStatus sum;
  for (std::size_t rank = 0; rank < all.size(); ++rank) add(all[rank], rank, sum);
  return sum;
}

}  // namespace cohort::input
