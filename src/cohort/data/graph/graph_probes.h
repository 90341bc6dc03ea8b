// SPDX-License-Identifier: Apache-2.0
// Calls a dataset function for different elements and compares the graphs, to distinguish values
// that come from the element from constants.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "cohort/data/functions/dataset_function.h"
#include "cohort/data/graph/node.h"

namespace cohort::data {

struct GraphProbe {
  Fields element;
  std::vector<NodePtr> nodes;                    // inputs before their users
  std::vector<std::vector<std::size_t>> inputs;  // of each node, as positions in `nodes`
};

// Graphs for an element that `input` yields and for two made-up ones. The elements differ in every
// field and in every unknown size.
std::vector<GraphProbe> probe_graphs(const DatasetFunction& function, const Node& input);

// Merges an attribute's values in all probes: into the constant that they all are, or into a hole
// (a placeholder for a field of the element); nullopt if they are neither.
std::optional<Nest> common_value(const std::vector<Nest>& values,
                                 const std::vector<const Fields*>& elements);

// The value of a hole for an element; data_loss if `hole` is invalid or does not fit the element.
Nest filled_hole(const Nest& hole, const Fields& element);
// Whether a nest is a hole.
bool is_hole(const Nest& nest);
// Converts a key of a map in a template to the key in a graph: removes one leading '$', if any. The
// template has one more, so that holes of a nested dataset function are not taken for its own.
std::string key_in_graph(const std::string& key);
// Throws data_loss for an invalid template.
[[noreturn]] void fail_template(const char* expected);

}  // namespace cohort::data
