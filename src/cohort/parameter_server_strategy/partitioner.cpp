// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/parameter_server_strategy.h"

#include <algorithm>
#include <string_view>

#include "cohort/core/error.h"

namespace cohort {
namespace {

void check_at_least(std::string_view partitioner, std::string_view option, std::int64_t value,
                    std::int64_t least) {
  COHORT_CHECK(value >= least, ErrorCode::invalid_argument, "[", partitioner, "] expected ", option,
               " of at least ", least, ", got ", value);
}

std::int64_t rows_of(std::string_view partitioner, const TensorSpec& spec, std::int64_t axis) {
  COHORT_CHECK(spec.is_static(), ErrorCode::invalid_argument, "[", partitioner,
               "] expected known sizes, got ", spec.to_string());
  const auto rank = static_cast<std::int64_t>(spec.sizes->size());
  COHORT_CHECK(axis >= 0 && axis < rank, ErrorCode::invalid_argument, "[", partitioner,
               "] expected an axis of ", spec.to_string(), ", got ", axis);
  return (*spec.sizes)[static_cast<std::size_t>(axis)];
}

std::vector<std::int64_t> shards_along(const TensorSpec& spec, std::int64_t axis,
                                       std::int64_t count) {
  std::vector<std::int64_t> shards(spec.sizes->size(), 1);
  shards[static_cast<std::size_t>(axis)] = count;
  return shards;
}

std::int64_t bytes_of(const TensorSpec& spec, std::int64_t bytes_per_string) {
  if (spec.dtype == kString) return spec.element_count() * bytes_per_string;
  return spec.byte_count();
}

// `total` rounded up to parts of `part`.
std::int64_t parts_of(std::int64_t total, std::int64_t part) {
  return total / part + (total % part == 0 ? 0 : 1);
}

}  // namespace

std::vector<std::int64_t> FixedShardsPartitioner::operator()(const TensorSpec& spec,
                                                             std::int64_t axis) const {
  const std::int64_t rows = rows_of("FixedShardsPartitioner", spec, axis);
  return shards_along(spec, axis, std::min(num_shards_, rows));
}

MinSizePartitioner::MinSizePartitioner(MinSizePartitionerOptions options) : options_(options) {
  check_at_least("MinSizePartitioner", "min_shard_bytes", options.min_shard_bytes, 1);
  check_at_least("MinSizePartitioner", "max_shards", options.max_shards, 1);
  check_at_least("MinSizePartitioner", "bytes_per_string", options.bytes_per_string, 1);
}

std::vector<std::int64_t> MinSizePartitioner::operator()(const TensorSpec& spec,
                                                         std::int64_t axis) const {
  const std::int64_t rows = rows_of("MinSizePartitioner", spec, axis);
  const std::int64_t wanted =
      parts_of(bytes_of(spec, options_.bytes_per_string), options_.min_shard_bytes);
  return shards_along(spec, axis,
                      std::max<std::int64_t>(1, std::min({rows, options_.max_shards, wanted})));
}

MaxSizePartitioner::MaxSizePartitioner(MaxSizePartitionerOptions options) : options_(options) {
  check_at_least("MaxSizePartitioner", "max_shard_bytes", options.max_shard_bytes, 1);
  check_at_least("MaxSizePartitioner", "max_shards", options.max_shards, 0);
  check_at_least("MaxSizePartitioner", "bytes_per_string", options.bytes_per_string, 1);
}

std::vector<std::int64_t> MaxSizePartitioner::operator()(const TensorSpec& spec,
                                                         std::int64_t axis) const {
  const std::int64_t rows = rows_of("MaxSizePartitioner", spec, axis);
  if (rows == 0) return shards_along(spec, axis, 1);
  const std::int64_t row_bytes =
      std::max<std::int64_t>(1, bytes_of(spec, options_.bytes_per_string) / rows);
  const std::int64_t rows_of_shard =
      std::max<std::int64_t>(1, options_.max_shard_bytes / row_bytes);
  const std::int64_t wanted = parts_of(rows, rows_of_shard);
  return shards_along(spec, axis,
                      options_.max_shards == 0 ? wanted : std::min(wanted, options_.max_shards));
}

}  // namespace cohort
