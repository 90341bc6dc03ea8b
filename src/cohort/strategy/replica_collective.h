// SPDX-License-Identifier: Apache-2.0
// all_reduce() and all_gather() of replicas, with their gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/collective/group.h"
#include "cohort/core/nest.h"
#include "cohort/replicas/reduction.h"
#include "cohort/replicas/step_call.h"
#include "cohort/strategy/replica_context.h"

namespace cohort::internal {

class StrategyWorkers;  // workers/strategy_workers.h

// A call that all replicas make at the same time. The result in each replica:
//
//   forward:    result = sum of x over the replicas       result = concatenation of x
//   backward:   dx = sum of dresult over the replicas     dx = own part of that sum
//
// The backward pass of each replica runs on its thread, and meets the others in its turn. Whether
// there will be one is decided by all replicas together, in the meeting of the forward pass: a
// replica whose value requires no gradient gets a result that does, if another replica's value
// does. So either all have the graph or none has.
struct CollectiveCall {
  enum class Kind : std::uint8_t { reduce, gather };
  Kind kind = Kind::reduce;
  ReduceOp op = ReduceOp::sum;
  std::int64_t axis = 0;
  std::optional<Duration> timeout = {};
  // Only in the gradient of a call: an object that stands for that call; in run() it is the same
  // in all replicas.
  std::shared_ptr<const void> gradient_of = {};
  // For messages: the call of the user's program that makes this one; empty: it is this one.
  std::string_view made_by = {};

  // The contribution of one replica's value, and the result of all contributions.
  Reduction::Parts part_of(const at::Tensor& value) const;
  at::Tensor combined(
      const std::vector<Reduction::Parts>& parts,
      CrossDeviceOps cross_device_ops = CrossDeviceOps::reduction_to_one_device) const;
  std::string_view name() const {
    if (!made_by.empty()) return made_by;
    return kind == Kind::reduce ? "all_reduce" : "all_gather";
  }
  // "all_reduce(sum)", "average_loss()", "gradient of all_gather(axis 0)"
  std::string text() const {
    std::string text = gradient_of ? "gradient of " : "";
    text += name();
    if (!made_by.empty()) return text + "()";
    if (kind == Kind::gather) return text + "(axis " + std::to_string(axis) + ")";
    return text + "(" + std::string(cohort::name_of(op)) + ")";
  }
  // The same with the structure of the value, if the user's program has given it.
  std::string text_with(const Nest& value) const {
    return made_by.empty() ? text() + " of " + value.structure() : text();
  }
};

// The call in a traced step, which combines values as they are. `workers`: of the strategy, which
// outlives the step; nullptr for a strategy without any.
std::unique_ptr<const JoinedCall> joined_collective(const CollectiveCall& call,
                                                    StrategyWorkers* workers);

// Throws as ReplicaContext::all_reduce() and all_gather() do.
Nest call_together(const ReplicaContext& context, const CollectiveCall& call, const Nest& value);

}  // namespace cohort::internal
