// SPDX-License-Identifier: Apache-2.0
// What flat_map and interleave run: the user's function from an element to a dataset.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "cohort/core/once.h"
#include "cohort/data/dataset.h"
#include "cohort/data/element.h"
#include "cohort/data/internal/attribute_reader.h"
#include "cohort/data/internal/node.h"

namespace cohort::data {

// Thread-safe; the user's code is called as it is, from several threads where the pipeline has
// some.
class DatasetFunction {
 public:
  // Whether it came in a peer's graph.
  enum class Origin : std::uint8_t { here, wire };

  DatasetFunction(DatasetBody body, std::size_t arity, Origin origin = Origin::here)
      : body_(std::move(body)), arity_(arity), origin_(origin) {}
  virtual ~DatasetFunction() = default;

  // The dataset of an element. invalid_argument where the parameters do not fit the element.
  NodePtr call(const Nest& structure, const Fields& fields) const;
  // That of an example element of `input`, kept: for specs and for rewrites that look inside.
  // Throws what draw_examples() or the function throws.
  const Node& example(const Node& input) const;
  // Tries it on a few elements as the graph is built, where drawing some is free (is_free_to_draw).
  // Throws invalid_argument where it fails with that for each; all else is left to the run.
  void check(const Node& input, std::string_view op) const;
  // What is common to the elements of the datasets it makes of a few elements of `input`,
  // which are made up where it does not say a rank.
  ElementSpec element_spec(const Node& input) const;
  // What ships it as the function of the op `op` over `input`. Throws where that cannot be.
  virtual Attributes attributes(const Node& input, std::string_view op) const;

 private:
  RunOptions preview_options() const;
  // nullopt where it makes nothing of such elements.
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
