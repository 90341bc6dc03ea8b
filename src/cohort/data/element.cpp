// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/element.h"

#include <algorithm>

#include "cohort/core/error.h"

namespace cohort {
namespace {

// The sizes on which both agree; -1 or nullopt elsewhere. `b` has the same dtype.
TensorSpec common_sizes(TensorSpec a, const TensorSpec& b) {
  if (!a.sizes || !b.sizes || a.sizes->size() != b.sizes->size()) return {a.dtype, std::nullopt};
  for (std::size_t i = 0; i < a.sizes->size(); ++i) {
    if ((*a.sizes)[i] != (*b.sizes)[i]) (*a.sizes)[i] = -1;
  }
  return a;
}

bool are_compatible(const TensorSpec& a, const TensorSpec& b) {
  if (a.dtype != b.dtype) return false;
  if (!a.sizes || !b.sizes) return true;
  return std::equal(a.sizes->begin(), a.sizes->end(), b.sizes->begin(), b.sizes->end(),
                    [](std::int64_t x, std::int64_t y) { return x < 0 || y < 0 || x == y; });
}

}  // namespace

ElementSpec ElementSpec::of(const Nest& element) {
  ElementSpec spec;
  spec.structure = element.map_leaves([&spec](const Nest& leaf) {
    COHORT_CHECK(leaf.is_tensor(), ErrorCode::invalid_argument,
                 "[data.element] expected tensors in an element, got ", name_of(leaf.kind()),
                 " for field ", spec.fields.size(), "; make it a tensor");
    COHORT_CHECK(leaf.tensor().defined() && leaf.tensor().layout() == at::kStrided,
                 ErrorCode::invalid_argument, "[data.element] expected a dense tensor, got ",
                 leaf.tensor().toString(), " for field ", spec.fields.size(),
                 "; sparse and ragged fields are not supported yet");
    spec.fields.push_back(TensorSpec::of(leaf.tensor()));
    return Nest(static_cast<std::int64_t>(spec.fields.size()) - 1);
  });
  return spec;
}

ElementSpec ElementSpec::tuple(std::vector<TensorSpec> fields) {
  if (fields.size() == 1) return {.structure = Nest(std::int64_t{0}), .fields = std::move(fields)};
  Nest::Items items;
  for (std::size_t i = 0; i < fields.size(); ++i) items.emplace_back(static_cast<std::int64_t>(i));
  return {.structure = Nest::tuple(std::move(items)), .fields = std::move(fields)};
}

Nest ElementSpec::pack(const Fields& values) const {
  return structure.map_leaves([&values](const Nest& leaf) {
    const auto index = static_cast<std::size_t>(leaf.integer());
    COHORT_CHECK(index < values.size(), ErrorCode::invalid_argument,
                 "[data.element] expected a value for field ", index, ", got ", values.size(),
                 " fields");
    return Nest(values[index]);
  });
}

ElementSpec ElementSpec::common_with(const ElementSpec& other) const {
  COHORT_CHECK(structure.structure() == other.structure.structure(), ErrorCode::invalid_argument,
               "[data.element] expected elements of one structure, got ", to_string(), " and ",
               other.to_string());
  ElementSpec both = *this;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    COHORT_CHECK(fields[i].dtype == other.fields[i].dtype, ErrorCode::invalid_argument,
                 "[data.element] expected one dtype in field ", i, ", got ", to_string(), " and ",
                 other.to_string());
    both.fields[i] = common_sizes(fields[i], other.fields[i]);
  }
  return both;
}

std::string ElementSpec::to_string() const {
  const auto print = [this](const Nest& nest, const auto& self) -> std::string {
    if (nest.is_leaf()) {
      return nest.is_null() ? "()"
                            : fields.at(static_cast<std::size_t>(nest.integer())).to_string();
    }
    std::string text;
    const auto add = [&text](const std::string& part) {
      text += (text.empty() ? "" : ", ") + part;
    };
    if (nest.kind() == Nest::Kind::map) {
      for (const auto& [key, value] : nest.entries()) add(key + ": " + self(value, self));
      return "{" + text + "}";
    }
    for (const Nest& item : nest.items()) add(self(item, self));
    return nest.kind() == Nest::Kind::list ? "[" + text + "]" : "(" + text + ")";
  };
  return print(structure, print);
}

data::Optional data::Optional::from_value(Nest value) {
  ElementSpec spec = ElementSpec::of(value);
  return {std::move(spec), std::move(value)};
}

data::Optional data::Optional::empty(ElementSpec element_spec) {
  return {std::move(element_spec), std::nullopt};
}

const Nest& data::Optional::get_value() const {
  COHORT_CHECK(value_.has_value(), ErrorCode::invalid_argument,
               "[data.optional] expected an optional with a value, got an empty one of ",
               spec_.to_string(), "; ask has_value() first");
  return *value_;
}

bool data::Optional::is_compatible_with(const ElementSpec& other) const {
  if (spec_.fields.size() != other.fields.size() ||
      spec_.structure.structure() != other.structure.structure()) {
    return false;
  }
  for (std::size_t i = 0; i < spec_.fields.size(); ++i) {
    if (!are_compatible(spec_.fields[i], other.fields[i])) return false;
  }
  return true;
}

}  // namespace cohort
