// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/cannot_fail.h"

#include <algorithm>

#include "cohort/data/graph/node.h"
#include "cohort/data/ops/op_registry.h"

namespace cohort::data {
namespace {

bool has_static_spec(const Node& node) {
  const std::vector<TensorSpec>& fields = node.spec().fields;
  return std::all_of(fields.begin(), fields.end(),
                     [](const TensorSpec& field) { return field.is_static(); });
}

bool cannot_fail(const Node& node) {
  const Op* const op = find_op(node.op());
  if (op == nullptr || op->can_fail) return false;
  if (node.op() == "batch" && !has_static_spec(node.input())) return false;
  return std::all_of(node.inputs().begin(), node.inputs().end(),
                     [](const NodePtr& input) { return cannot_fail(*input); });
}

}  // namespace

bool cannot_fail(const Dataset& dataset) { return cannot_fail(*dataset.node()); }

}  // namespace cohort::data
