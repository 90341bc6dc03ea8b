// SPDX-License-Identifier: Apache-2.0
// How the variables of a ParameterServerStrategy are divided over its servers
// (tf.distribute.experimental.partitioners).
//
//   const MinSizePartitioner partitioner({.min_shard_bytes = 256 << 10, .max_shards = 2});
//   ParameterServerStrategy strategy(resolver, {.partitioner = partitioner});
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/core/tensor_spec.h"

namespace cohort {

// The number of shards along each axis of a variable of this spec: [4, 1] divides a matrix into
// four parts of rows. All numbers but the first one must be 1, since only rows are divided; a first
// number greater than the number of rows counts as that one. Called when a variable is made, on the
// thread that makes it.
using Partitioner = std::function<std::vector<std::int64_t>(const TensorSpec& spec)>;

// A number of shards along `axis`, and 1 along the other axes. Immutable, and thread-safe. Each
// call throws invalid_argument for unknown sizes, and for an axis that the spec does not have. A
// strategy refuses 0 shards when it makes a variable.
class COHORT_API FixedShardsPartitioner {
 public:
  explicit FixedShardsPartitioner(std::int64_t num_shards) : num_shards_(num_shards) {}
  std::vector<std::int64_t> operator()(const TensorSpec& spec, std::int64_t axis = 0) const;

 private:
  std::int64_t num_shards_;
};

struct MinSizePartitionerOptions {
  std::int64_t min_shard_bytes = 256 << 10;
  std::int64_t max_shards = 1;
  std::int64_t bytes_per_string = 16;
};
// As many shards as have at least `min_shard_bytes` each, rounded up as in tf: the last one may
// bring them below it. At most `max_shards`. Throws invalid_argument for an option below 1.
class COHORT_API MinSizePartitioner {
 public:
  explicit MinSizePartitioner(MinSizePartitionerOptions options = {});
  std::vector<std::int64_t> operator()(const TensorSpec& spec, std::int64_t axis = 0) const;

 private:
  MinSizePartitionerOptions options_;
};

struct MaxSizePartitionerOptions {
  std::int64_t max_shard_bytes = 0;
  std::int64_t max_shards = 0;  // 0: any number
  std::int64_t bytes_per_string = 16;
};
// As few shards as have at most `max_shard_bytes` each; a row is never divided, so a shard of one
// row may be larger. Throws invalid_argument unless `max_shard_bytes` and `bytes_per_string` are at
// least 1 and `max_shards` at least 0. Differs from tf for a variable without rows: tf divides by
// zero, this returns 1.
class COHORT_API MaxSizePartitioner {
 public:
  explicit MaxSizePartitioner(MaxSizePartitionerOptions options);
  std::vector<std::int64_t> operator()(const TensorSpec& spec, std::int64_t axis = 0) const;

 private:
  MaxSizePartitionerOptions options_;
};

}  // namespace cohort
