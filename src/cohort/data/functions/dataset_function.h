// SPDX-License-Identifier: Apache-2.0
// The user's function of flat_map and interleave, from an element to a dataset.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "cohort/core/once.h"
#include "cohort/data/dataset.h"
#include "cohort/data/element.h"
#include "cohort/data/graph/attribute_reader.h"
#include "cohort/data/graph/node.h"

namespace cohort::data {

// Thread-safe; the user's code is called without a lock, from several threads if the pipeline has
// several.
class DatasetFunction {
 public:
  // Whether this process built it or a peer's graph contained it.
  enum class Origin : std::uint8_t { here, wire };

  DatasetFunction(DatasetBody body, std::size_t arity, Origin origin = Origin::here)
      : body_(std::move(body)), arity_(arity), origin_(origin) {}
  virtual ~DatasetFunction() = default;

  // The dataset of an element. invalid_argument if the parameters do not fit the element.
  NodePtr call(const Nest& structure, const Fields& fields) const;
  // The dataset of one example element of `input`, computed once. For specs, and for rewrites that
  // examine it. Throws what draw_examples() or the function throws.
  const Node& example(const Node& input) const;
  // While the graph is built, calls the function for a few elements, if drawing them is free
  // (is_free_to_draw). Throws invalid_argument if each call fails with that code; all other errors
  // are left to the run.
  void check(const Node& input, std::string_view op) const;
  // The common spec of the elements of the datasets that it makes from a few elements of `input`.
  // The elements are made up if a rank is unknown.
  ElementSpec element_spec(const Node& input) const;
  // Serializes it as the function of `op` with the input `input`. Throws if that is impossible.
  virtual Attributes attributes(const Node& input, std::string_view op) const;

 private:
  IterationOptions preview_options() const;
  // nullopt if the function fails for two or more of the three made-up elements.
  std::optional<ElementSpec> spec_of_made_up(const Nest& structure, const ElementSpec& input) const;
  ElementSpec spec_of_examples(const Node& input) const;

  DatasetBody body_;
  std::size_t arity_;
  Origin origin_;
  mutable Once example_once_;
  mutable NodePtr example_;
};

std::shared_ptr<const DatasetFunction> read_dataset_function(AttributeReader& attributes);

}  // namespace cohort::data
