// SPDX-License-Identifier: Apache-2.0
// Elements of different shapes stacked into one batch (padded_batch).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/data/element.h"

namespace cohort::data {

// How one field is padded. A value type.
struct FieldPadding {
  // The sizes of the field's elements in the batch, -1: the longest; nullopt: all of them -1.
  std::optional<std::vector<std::int64_t>> sizes;
  at::Tensor value;  // a scalar; undefined: 0, false or ""
};

// What messages call the fields of elements: "field 0", and in a nest "field 2, ['b'][1]".
std::vector<std::string> field_names(const Nest& structure);

// A row for each element; `field` is its name. invalid_argument where dtypes or ranks differ,
// data_loss where an element is longer than a given size.
at::Tensor padded(const std::vector<at::Tensor>& elements, const FieldPadding& padding,
                  const std::string& field);

// One padding a field: `shapes` and `values` as PaddedBatchOptions has them. invalid_argument where
// they do not fit the spec, with the path of the field.
std::vector<FieldPadding> paddings_of(const ElementSpec& spec, const Nest& shapes,
                                      const Nest& values);

}  // namespace cohort::data
