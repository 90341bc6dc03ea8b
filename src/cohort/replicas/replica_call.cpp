// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/replica_call.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/string_tensor.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/data/string_fields.h"
#include "cohort/replicas/component_impl.h"

namespace cohort::internal {
namespace {

// Whether the values are those of one variable, of each replica its own.
bool are_parts_of_one(const std::vector<Variable>& values) {
  const std::optional<Variable> whole = container_of(values.front());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto* const part = dynamic_cast<const ComponentImpl*>(values[i].impl().get());
    if (part == nullptr || part->index() != i || part->count() != values.size() ||
        container_of(values[i]) != whole)
      return false;
  }
  return true;
}

}  // namespace

bool is_one_object(const Nest& a, const Nest& b) {
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Nest::Kind::tensor:
      return a.tensor().is_same(b.tensor());
    case Nest::Kind::integer:
    case Nest::Kind::real:
      return false;
    case Nest::Kind::boolean:
      return a.boolean() == b.boolean();
    case Nest::Kind::text:
      return a.text() == b.text();
    case Nest::Kind::handle:
      return a.handle() == b.handle();
    default:
      break;
  }
  const std::vector<Nest> of_a = a.flatten();
  const std::vector<Nest> of_b = b.flatten();
  if (a.is_leaf() || of_a.size() != of_b.size()) return a.is_null() && b.is_null();
  return std::equal(of_a.begin(), of_a.end(), of_b.begin(),
                    [](const Nest& x, const Nest& y) { return is_one_object(x, y); });
}

bool is_one_object(const std::vector<Nest>& values) {
  return std::all_of(values.begin(), values.end(),
                     [&](const Nest& value) { return is_one_object(values.front(), value); });
}

void check_components(std::size_t components, std::size_t replicas, std::string_view call,
                      const std::string& what) {
  COHORT_CHECK(components == replicas, ErrorCode::invalid_argument, "[strategy.", call,
               "] expected ", what,
               " with a component for each replica of this process, of which "
               "there ",
               replicas == 1 ? "is " : "are ", replicas, ", got one with ", components,
               "; pass an element of a dataset that this strategy has distributed, or a result of "
               "its run()");
}

void check_is_numeric(const Nest& component, std::size_t index) {
  COHORT_CHECK(!component.is_tensor() || !StringTensor::is(component.tensor()),
               ErrorCode::invalid_argument,
               "[strategy.run] expected a tensor of numbers as argument ", index,
               " of the function, got ", TensorSpec::of(component.tensor()).to_string(), "; ",
               data::kStringRemedy, ", or take a cohort::StringTensor");
}

void check_one_structure(const std::vector<Nest>& values, std::string_view call) {
  for (std::size_t i = 1; i < values.size(); ++i) {
    Nest::check_same_structure(
        values[0], values[i],
        "[strategy." + std::string(call) + "] the value of replica " + std::to_string(i));
  }
}

std::vector<Variable> with_containers(std::vector<Variable> values) {
  if (is_one_object(values) || !are_parts_of_one(values)) return values;
  return std::vector<Variable>(values.size(), *container_of(values.front()));
}

std::optional<Variable> container_of(const Variable& variable) {
  const auto* const part = dynamic_cast<const ComponentImpl*>(variable.impl().get());
  return part == nullptr ? std::nullopt : std::optional(part->whole());
}

}  // namespace cohort::internal
