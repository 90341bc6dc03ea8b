// SPDX-License-Identifier: Apache-2.0
// The graphs that a dataset function makes, as one graph with holes for the element's values: how
// flat_map and interleave are shipped (docs/formats/pipeline.md).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cohort/data/internal/dataset_function.h"
#include "cohort/data/internal/node.h"

namespace cohort::data {

// Immutable. Thread-safe.
class GraphTemplate {
 public:
  // Calls the function for elements of `input` and for made-up ones. failed_precondition naming
  // node and attribute where its graphs differ in more than the values of the element.
  static GraphTemplate of(const DatasetFunction& function, const Node& input);
  // From its wire form; data_loss for anything that cannot be one, unimplemented for an op that
  // this build does not have.
  static GraphTemplate read(const Nest& wire);
  Nest to_nest() const;

  NodePtr graph_of(const Fields& element) const;

 private:
  struct Step {
    std::string op;
    std::vector<std::size_t> inputs;  // earlier steps
    Nest attributes;                  // a map; holes are maps too
  };

  void check() const;

  std::vector<Step> steps_;  // the last is the graph's result
};

}  // namespace cohort::data
