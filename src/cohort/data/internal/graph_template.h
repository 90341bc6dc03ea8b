// SPDX-License-Identifier: Apache-2.0
// The graphs that a dataset function makes, as one graph with holes for the element's values: how
// flat_map and interleave are shipped (docs/formats/pipeline.md).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cohort/data/internal/dataset_function.h"
#include "cohort/data/internal/node.h"

namespace cohort::data {

class ProgramSource;  // internal/map_function.h

// Immutable. Thread-safe.
class GraphTemplate {
 public:
  // Calls the function for elements of `input` and for made-up ones. failed_precondition naming
  // node and attribute where its graphs differ in more than the values of the element.
  static GraphTemplate of(const DatasetFunction& function, const Node& input);
  // From its wire form; data_loss for anything that cannot be one, unimplemented for an op that
  // this build does not have.
  // `source`: of the op that has it, or null.
  static GraphTemplate read(const Nest& wire, const std::shared_ptr<ProgramSource>& source = {});
  Nest to_nest() const;

  NodePtr graph_of(const Fields& element) const;

 private:
  struct Step {
    std::string op;
    std::vector<std::size_t> inputs;        // earlier steps
    Nest attributes;                        // a map; holes are maps too
    std::shared_ptr<ProgramSource> source;  // shared with each of its ops; may be null
  };

  void check() const;

  std::vector<Step> steps_;  // the last is the graph's result
};

}  // namespace cohort::data
