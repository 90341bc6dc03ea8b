// SPDX-License-Identifier: Apache-2.0
#include "cohort/v1/round_robin.h"

#include <c10/util/ArrayRef.h>

#include <algorithm>

#include "cohort/core/error.h"

namespace cohort::detail::v1 {

std::int64_t RoundRobin::num_shards(const std::string& name, const TensorSpec& spec) const {
  if (!partitioner_ || spec.sizes->empty()) return 1;
  const std::vector<std::int64_t> shards = partitioner_(spec);
  const bool is_of_rows =
      shards.size() == spec.sizes->size() && shards.front() > 0 &&
      std::all_of(shards.begin() + 1, shards.end(), [](std::int64_t along) { return along == 1; });
  COHORT_CHECK(is_of_rows, ErrorCode::invalid_argument,
               "[strategy.variable] expected a partitioner that returns a number of shards above 0 "
               "along the first axis and 1 along each other axis, got ",
               c10::IntArrayRef(shards), " for variable '", name, "' ", spec.to_string());
  return std::max<std::int64_t>(1, std::min(shards.front(), spec.sizes->front()));
}

// Divides rows as tf's "div": the first shards have one row more.
std::vector<rpc::Slice> RoundRobin::next(const std::string& name, const TensorSpec& spec) {
  const std::int64_t shards = num_shards(name, spec);
  std::vector<rpc::Slice> slices;
  std::int64_t first_row = 0;
  for (std::int64_t i = 0; i < shards; ++i) {
    rpc::Slice& slice = slices.emplace_back();
    slice.server = static_cast<rpc::MemberId>(turns_++ % num_servers_);
    if (shards == 1) break;
    const std::int64_t rows = spec.sizes->front();
    slice.first_row = first_row;
    slice.rows = rows / shards + (i < rows % shards ? 1 : 0);
    first_row += slice.rows;
  }
  return slices;
}

std::vector<rpc::Slice> RoundRobin::beside(std::span<const rpc::Slice> other) {
  return {rpc::Slice{.server = other.front().server}};
}

}  // namespace cohort::detail::v1
