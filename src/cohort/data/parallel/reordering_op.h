// SPDX-License-Identifier: Apache-2.0
// Ops whose parallel calls may end in any order.
#pragma once

#include <optional>

#include "cohort/data/graph/op_node.h"

namespace cohort::data {

// The attributes of MapOptions and similar options; those that have their defaults are left out.
void describe_parallel(auto& visit, auto& options) {
  visit.optional("num_parallel_calls", options.num_parallel_calls, 0,
                 AtLeast{kAutotune, ">= 0 or kAutotune"});
  visit.optional("deterministic", options.deterministic, std::nullopt);
}

// An op whose attributes have such `options`.
template <class Self, class A, class Base = Node>
class ReorderingNode : public OpNode<Self, A, Base> {
 public:
  using OpNode<Self, A, Base>::OpNode;
  bool may_reorder(bool deterministic) const final {
    const auto& options = this->given().options;
    return options.num_parallel_calls != 0 && !options.deterministic.value_or(deterministic);
  }
};

}  // namespace cohort::data
