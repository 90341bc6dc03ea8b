// SPDX-License-Identifier: Apache-2.0
// Graphs that a dataset function made of different elements: what tells values of the element from
// constants.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "cohort/data/internal/dataset_function.h"
#include "cohort/data/internal/node.h"

namespace cohort::data {

struct GraphProbe {
  Fields element;
  std::vector<NodePtr> nodes;                    // inputs before their users
  std::vector<std::vector<std::size_t>> inputs;  // of each, by position
};

// The first is of an element that `input` really yields. The elements differ in every field, and in
// every size that is not known.
std::vector<GraphProbe> probe_graphs(const DatasetFunction& function, const Node& input);

// An attribute's value for each probe, as the same constant, as a hole that the element fills, or
// nullopt where it is neither.
std::optional<Nest> common_value(const std::vector<Nest>& values,
                                 const std::vector<const Fields*>& elements);

// A hole's value for an element; data_loss for what is no hole or does not fit the element.
Nest filled_hole(const Nest& hole, const Fields& element);
// Whether a map stands for a value of the element.
bool is_hole(const Nest& nest);
// What a key of a map in a template is in the graphs made of it: one that marks a hole of a
// function inside the function loses a mark.
std::string key_in_graph(const std::string& key);

}  // namespace cohort::data
