// SPDX-License-Identifier: Apache-2.0
// The graphs that a dataset function makes, as one graph with holes (placeholders) for the
// element's values. This is how flat_map and interleave are serialized (docs/formats/pipeline.md).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cohort/data/functions/dataset_function.h"
#include "cohort/data/graph/node.h"

namespace cohort::data {

class ProgramSource;  // functions/map_function.h

// Immutable. Thread-safe.
class GraphTemplate {
 public:
  // Calls the function for an element of `input` and for made-up ones. failed_precondition, naming
  // node and attribute, if the graphs differ in more than the values of the element.
  static GraphTemplate of(const DatasetFunction& function, const Node& input);
  // Reads the serialized form. data_loss if it is invalid; unimplemented if this build does not
  // have an op. `source` is the source of the op with this function, or null.
  static GraphTemplate read(const Nest& wire, const std::shared_ptr<ProgramSource>& source = {});
  Nest to_nest() const;

  NodePtr graph_of(const Fields& element) const;

 private:
  struct Step {
    std::string op;
    std::vector<std::size_t> inputs;        // earlier steps
    Nest attributes;                        // a map; holes are maps too
    std::shared_ptr<ProgramSource> source;  // shared with the ops made from this step; may be null
  };

  void check() const;

  std::vector<Step> steps_;  // the last is the graph's result
};

}  // namespace cohort::data
