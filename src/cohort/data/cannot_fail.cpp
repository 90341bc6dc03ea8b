// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/detail/cannot_fail.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "cohort/data/internal/node.h"

namespace cohort::data {
namespace {

bool has_static_spec(const Node& node) {
  const std::vector<TensorSpec>& fields = node.spec().fields;
  return std::all_of(fields.begin(), fields.end(),
                     [](const TensorSpec& field) { return field.is_static(); });
}

// Excludes with_spec: its spec may be wrong, so batch could still fail.
bool cannot_fail(const Node& node) {
  static constexpr std::array<std::string_view, 15> kSafe{"range",          "from_tensor_slices",
                                                          "from_tensors",   "zip",
                                                          "enumerate",      "shuffle",
                                                          "repeat",         "shard",
                                                          "take",           "skip",
                                                          "batch",          "concatenate",
                                                          "shard_by_index", "prefetch",
                                                          "options"};
  if (std::find(kSafe.begin(), kSafe.end(), node.op()) == kSafe.end()) return false;
  if (node.op() == "batch" && !has_static_spec(node.input())) return false;
  return std::all_of(node.inputs().begin(), node.inputs().end(),
                     [](const NodePtr& input) { return cannot_fail(*input); });
}

}  // namespace

bool cannot_fail(const Dataset& dataset) { return cannot_fail(*dataset.node()); }

}  // namespace cohort::data
