// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/element.h"

#include <algorithm>

#include "cohort/core/error.h"

namespace cohort::data {
namespace {

bool are_compatible(const TensorSpec& a, const TensorSpec& b) {
  if (a.dtype != b.dtype) return false;
  if (!a.sizes || !b.sizes) return true;
  return std::equal(a.sizes->begin(), a.sizes->end(), b.sizes->begin(), b.sizes->end(),
                    [](std::int64_t x, std::int64_t y) { return x < 0 || y < 0 || x == y; });
}

}  // namespace

Optional Optional::from_value(Nest value) {
  ElementSpec spec = ElementSpec::of(value);
  return {std::move(spec), std::move(value)};
}

Optional Optional::empty(ElementSpec element_spec) {
  return {std::move(element_spec), std::nullopt};
}

const Nest& Optional::get_value() const {
  COHORT_CHECK(value_.has_value(), ErrorCode::invalid_argument,
               "[data.optional] expected an optional with a value, got an empty one of ",
               spec_.to_string(), "; ask has_value() first");
  return *value_;
}

bool Optional::is_compatible_with(const ElementSpec& other) const {
  if (spec_.fields.size() != other.fields.size() ||
      spec_.structure.structure() != other.structure.structure()) {
    return false;
  }
  for (std::size_t i = 0; i < spec_.fields.size(); ++i) {
    if (!are_compatible(spec_.fields[i], other.fields[i])) return false;
  }
  return true;
}

}  // namespace cohort::data
