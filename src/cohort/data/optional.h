// SPDX-License-Identifier: Apache-2.0
// An element or nothing, with a known spec (tf.experimental.Optional).
#pragma once

#include <optional>

#include "cohort/core/export.h"
#include "cohort/core/nest.h"
#include "cohort/data/element.h"

namespace cohort {

// A value type; copies share tensors.
class COHORT_API Optional {
 public:
  static Optional from_value(Nest value);
  static Optional empty(ElementSpec element_spec);

  bool has_value() const { return value_.has_value(); }
  // invalid_argument if it is empty.
  const Nest& get_value() const;
  const ElementSpec& element_spec() const { return spec_; }
  // True if structures and dtypes are equal and no size is known in both specs and differs.
  bool is_compatible_with(const ElementSpec& other) const;

 private:
  Optional(ElementSpec spec, std::optional<Nest> value)
      : spec_(std::move(spec)), value_(std::move(value)) {}
  ElementSpec spec_;
  std::optional<Nest> value_;
};

}  // namespace cohort
