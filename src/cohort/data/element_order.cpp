// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/element_order.h"

#include <set>

#include "cohort/data/internal/node.h"
#include "cohort/data/internal/parallel/reordering_op.h"

namespace cohort::data {
namespace {

std::string first_of(const Node& node, bool is_deterministic, std::set<const Node*>& seen) {
  if (!seen.insert(&node).second) return "";
  for (const NodePtr& input : node.inputs()) {
    std::string found = first_of(*input, is_deterministic, seen);
    if (!found.empty()) return found;
  }
  const auto* parallel = dynamic_cast<const ReorderingOp*>(&node);
  if (parallel == nullptr || !parallel->may_reorder(is_deterministic)) return "";
  return "'" + std::string(node.op()) + "' with parallel calls and deterministic = false";
}

}  // namespace

std::string why_order_may_change(const Dataset& dataset) {
  std::set<const Node*> seen;
  return first_of(*dataset.node(), dataset.options().deterministic.value_or(true), seen);
}

}  // namespace cohort::data
