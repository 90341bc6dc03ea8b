// SPDX-License-Identifier: Apache-2.0
// The message that the workers exchange when a pass starts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/input/distribution/current_distribution.h"
#include "cohort/input/distribution/input_distribution.h"

namespace cohort::input {

// A value type.
struct IteratorHandshake {
  ShardingMode sharding_mode = ShardingMode::by_data;
  std::int64_t replicas = 1;
  std::string structure = {};  // of the elements
  std::vector<TensorSpec> fields = {};
  std::string spec = {};  // for messages
  // The workers divide a dataset of this cardinality between them, so it must be the same on all; 0
  // for datasets of a function or without a policy, which may differ.
  std::int64_t cardinality = 0;
  std::int64_t global_batch_size = 0;  // -1: not known
  bool is_infinite = false;
  bool cannot_fail = false;
  std::optional<std::int64_t> steps = {};
  PassOrder order = {};             // this worker's next
  std::uint64_t num_iterators = 0;  // of the strategy, so far
  std::uint64_t fingerprint = 0;    // of a dataset that the workers divide between them

  static IteratorHandshake of(const InputDistribution& distribution);
  Bytes encode() const;
  static IteratorHandshake decode(const Bytes& bytes);
};

// invalid_argument unless all have the same sharding mode, replicas, number of batches, batch size
// and graph, and specs that fit each other.
void check_alike(const std::vector<IteratorHandshake>& handshakes);

}  // namespace cohort::input
