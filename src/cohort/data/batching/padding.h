// SPDX-License-Identifier: Apache-2.0
// Pads elements of different shapes and stacks them into one batch (padded_batch).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/data/element.h"

namespace cohort::data {

// How one field is padded. A value type.
struct FieldPadding {
  // The sizes after padding; -1: the largest size in the batch; nullopt: all are -1.
  std::optional<std::vector<std::int64_t>> sizes;
  at::Tensor value;  // a scalar; undefined: 0, false or ""
};

// The padded elements, stacked; `field` is the field's name (field_names.h). invalid_argument if
// dtypes or ranks differ; data_loss if an element is larger than a given size.
at::Tensor padded(const std::vector<at::Tensor>& elements, const FieldPadding& padding,
                  const std::string& field);

// The padding of each field. `shapes` and `values` are those of PaddedBatchOptions.
// invalid_argument, with the path of the field, if they do not fit the spec.
std::vector<FieldPadding> paddings_of(const ElementSpec& spec, const Nest& shapes,
                                      const Nest& values);

}  // namespace cohort::data
