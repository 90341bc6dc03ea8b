// SPDX-License-Identifier: Apache-2.0
// Ops whose parallel calls may end in any order.
#pragma once

#include <optional>

#include "cohort/data/graph/op_node.h"

namespace cohort::data {

class ReorderingOp {
 public:
  // Whether another run may yield the elements in a different order. `deterministic` is the
  // dataset's option, for an op that has none of its own. Runs nothing.
  virtual bool may_reorder(bool deterministic) const = 0;

 protected:
  ~ReorderingOp() = default;
};

// The attributes of MapOptions and similar options; those that have their defaults are left out.
void describe_parallel(auto& visit, auto& options) {
  visit.optional("num_parallel_calls", options.num_parallel_calls, 0,
                 AtLeast{kAutotune, ">= 0 or kAutotune"});
  visit.optional("deterministic", options.deterministic, std::nullopt);
}

// An op whose attributes have such `options`.
template <class Self, class A, class Base = Node>
class ReorderingNode : public OpNode<Self, A, Base>, public ReorderingOp {
 public:
  using OpNode<Self, A, Base>::OpNode;
  bool may_reorder(bool deterministic) const final {
    const auto& options = this->given().options;
    return options.num_parallel_calls != 0 && !options.deterministic.value_or(deterministic);
  }
};

}  // namespace cohort::data
