// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/string_fields.h"

#include <optional>

#include "cohort/core/error.h"
#include "cohort/core/string_tensor.h"
#include "cohort/data/element.h"
#include "cohort/data/field_function.h"

namespace cohort::data {
namespace {

// Whether there are strings below `nest`; appends the steps to the first.
bool find_strings(const Nest& nest, std::vector<FieldPath::Step>& steps) {
  if (nest.is_leaf()) return nest.is_tensor() && StringTensor::is(nest.tensor());
  if (nest.kind() == Nest::Kind::map) {
    for (const auto& [key, item] : nest.entries()) {
      steps.emplace_back(key);
      if (find_strings(item, steps)) return true;
      steps.pop_back();
    }
    return false;
  }
  for (std::size_t i = 0; i < nest.items().size(); ++i) {
    steps.emplace_back(static_cast<std::int64_t>(i));
    if (find_strings(nest.items()[i], steps)) return true;
    steps.pop_back();
  }
  return false;
}

}  // namespace

void check_no_strings(const Nest& element, std::string_view op) {
  std::vector<FieldPath::Step> steps;
  COHORT_CHECK(!find_strings(element, steps), ErrorCode::invalid_argument, "[", op,
               "] expected elements of numbers for a step, got strings in ",
               FieldPath(std::move(steps)).to_string(), " of ",
               ElementSpec::of(element).to_string(), "; ", kStringRemedy);
}

}  // namespace cohort::data
