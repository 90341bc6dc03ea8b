// SPDX-License-Identifier: Apache-2.0
// What flat_map and interleave run: the user's function from an element to a dataset.
#pragma once

#include <memory>
#include <optional>

#include "cohort/data/dataset.h"
#include "cohort/data/element.h"
#include "cohort/data/internal/node.h"

namespace cohort::data {

// Thread-safe; the user's code is called as it is, in the pipeline's thread.
class DatasetFunction {
 public:
  DatasetFunction(DatasetBody body, std::size_t arity) : body_(std::move(body)), arity_(arity) {}
  virtual ~DatasetFunction() = default;

  // The dataset of an element. invalid_argument where the parameters do not fit the element.
  NodePtr call(const Nest& structure, const Fields& fields) const;
  // That of an example element of `input`, kept: for specs and for rewrites that look inside.
  // Throws what draw_examples() or the function throws.
  const Node& example(const Node& input) const;

 private:
  DatasetBody body_;
  std::size_t arity_;
  mutable std::once_flag example_once_;
  mutable NodePtr example_;
};

}  // namespace cohort::data
