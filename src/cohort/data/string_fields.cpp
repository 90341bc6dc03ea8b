// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/string_fields.h"

#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/string_tensor.h"
#include "cohort/data/element.h"

namespace cohort::data {
namespace {

// Whether `nest` contains strings; appends the path to the first ones to `steps`.
bool leads_to_strings(const Nest& nest, std::vector<FieldPath::Step>& steps) {
  if (nest.is_leaf()) return nest.is_tensor() && StringTensor::is(nest.tensor());
  if (nest.kind() == Nest::Kind::map) {
    for (const auto& [key, item] : nest.entries()) {
      steps.emplace_back(key);
      if (leads_to_strings(item, steps)) return true;
      steps.pop_back();
    }
    return false;
  }
  for (std::size_t i = 0; i < nest.items().size(); ++i) {
    steps.emplace_back(static_cast<std::int64_t>(i));
    if (leads_to_strings(nest.items()[i], steps)) return true;
    steps.pop_back();
  }
  return false;
}

}  // namespace

std::optional<FieldPath> find_strings(const Nest& nest) {
  std::vector<FieldPath::Step> steps;
  if (!leads_to_strings(nest, steps)) return std::nullopt;
  return FieldPath(std::move(steps));
}

void check_no_strings(const Nest& element, std::string_view op) {
  const std::optional<FieldPath> strings = find_strings(element);
  COHORT_CHECK(!strings, ErrorCode::invalid_argument, "[", op,
               "] expected elements of numbers for a step, got strings in ", strings->to_string(),
               " of ", ElementSpec::of(element).to_string(), "; ", kStringRemedy);
}

}  // namespace cohort::data
