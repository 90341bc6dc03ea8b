// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/cannot_fail.h"

#include <algorithm>

#include "cohort/data/graph/spec_inference.h"
#include "cohort/data/ops/op_registry.h"

namespace cohort::data {
namespace {

bool cannot_fail(const Node& node) {
  const Op* const op = find_op(node.op());
  if (op == nullptr || op->can_fail) return false;
  if (node.op() == "batch" && !is_static(node.input().spec())) return false;
  return std::ranges::all_of(node.inputs(),
                             [](const NodePtr& input) { return cannot_fail(*input); });
}

}  // namespace

bool cannot_fail(const Dataset& dataset) { return cannot_fail(*dataset.node()); }

}  // namespace cohort::data
