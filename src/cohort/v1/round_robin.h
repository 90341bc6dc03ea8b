// SPDX-License-Identifier: Apache-2.0
// On which servers variables are (tf.compat.v1.train.replica_device_setter's strategy): round robin
// in the order in which they are made.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/rpc/membership.h"
#include "cohort/strategy/parameter_server_strategy.h"

namespace cohort::detail::v1 {

// Thread-compatible.
class COHORT_API RoundRobin {
 public:
  // `partitioner`: may be empty.
  RoundRobin(std::int64_t num_servers, Partitioner partitioner)
      : num_servers_(num_servers), partitioner_(std::move(partitioner)) {}

  // The slices of the next variable, without its numbers; each takes a turn. Throws
  // invalid_argument, naming the variable, for a partitioner that does not divide rows.
  std::vector<rpc::Slice> next(const std::string& name, const TensorSpec& spec);
  // The slices of a variable that is where `other` is, for which no turn is taken.
  static std::vector<rpc::Slice> beside(std::span<const rpc::Slice> other);

 private:
  std::int64_t num_shards(const std::string& name, const TensorSpec& spec) const;

  const std::int64_t num_servers_;
  const Partitioner partitioner_;
  std::int64_t turns_ = 0;
};

}  // namespace cohort::detail::v1
