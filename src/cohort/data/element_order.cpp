// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/element_order.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "cohort/data/internal/node.h"

namespace cohort::data {
namespace {

// The ops whose calls run in parallel.
constexpr std::array<std::string_view, 3> kParallelOps{"interleave", "map", "parallel_batch"};

bool may_change(const Node& node, bool is_deterministic_otherwise) {
  if (std::find(kParallelOps.begin(), kParallelOps.end(), node.op()) == kParallelOps.end())
    return false;
  const Attributes attributes = node.attributes();
  if (!attributes.contains("num_parallel_calls")) return false;
  const auto own = attributes.find("deterministic");
  return own == attributes.end() ? !is_deterministic_otherwise : !own->second.boolean();
}

std::string first_of(const Node& node, bool is_deterministic, std::set<const Node*>& seen) {
  if (!seen.insert(&node).second) return "";
  for (const NodePtr& input : node.inputs()) {
    std::string found = first_of(*input, is_deterministic, seen);
    if (!found.empty()) return found;
  }
  if (!may_change(node, is_deterministic)) return "";
  return "'" + std::string(node.op()) + "' with parallel calls and deterministic = false";
}

}  // namespace

std::string why_order_may_change(const Dataset& dataset) {
  std::set<const Node*> seen;
  return first_of(*dataset.node(), dataset.options().deterministic.value_or(true), seen);
}

}  // namespace cohort::data
