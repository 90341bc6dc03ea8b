// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/guesses_sizes.h"

#include <algorithm>

#include "cohort/data/graph/node.h"

namespace cohort::data {
namespace {

bool drops_remainder(const Node& node) {
  if (node.op() != "batch" && node.op() != "parallel_batch") return false;
  const Attributes attributes = node.attributes();
  const auto found = attributes.find("drop_remainder");
  return found != attributes.end() && found->second.boolean();
}

bool guesses_sizes(const Node& node) {
  if (node.op() == "map") return !node.has_given_spec();
  if (node.dataset_function() != nullptr) return true;
  if (drops_remainder(node)) return false;
  return std::ranges::any_of(node.inputs(),
                             [](const NodePtr& input) { return guesses_sizes(*input); });
}

}  // namespace

bool guesses_sizes(const Dataset& dataset) { return guesses_sizes(*dataset.node()); }

}  // namespace cohort::data
