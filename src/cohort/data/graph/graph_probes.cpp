// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/graph/graph_probes.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/logical_not.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <unordered_map>

#include "cohort/core/error.h"
#include "cohort/core/string_tensor.h"
#include "cohort/data/graph/graph_codec.h"
#include "cohort/data/graph/spec_inference.h"

namespace cohort::data {
namespace {

// A hole is a map with these keys; part of the format. Other keys that begin with the mark, such as
// those of the holes of a nested dataset function, get one more mark in the template.
constexpr char kMark = '$';
constexpr const char* kField = "$field";
constexpr const char* kAs = "$as";
constexpr const char* kSizes = "$sizes";

// Values that differ from those of other fields and other made-up elements, as far as the dtype has
// enough values.
at::Tensor made_up(const at::Tensor& like, std::int64_t salt, std::int64_t field) {
  const std::int64_t count = c10::multiply_integers(like.sizes());
  if (StringTensor::is(like)) {
    std::vector<std::string> values;
    for (std::int64_t i = 0; i < count; ++i) {
      values.push_back("made-up/" + std::to_string(salt) + "/" + std::to_string(field) + "/" +
                       std::to_string(i));
    }
    return StringTensor(like.sizes().vec(), values);
  }
  if (like.scalar_type() == at::kBool) return at::logical_not(like);
  const bool is_small = c10::elementSize(like.scalar_type()) == 1;
  const std::int64_t begin = is_small ? 40 + 7 * salt + field : 1'009 * salt + 101 * field;
  return at::arange(begin, begin + count, at::kLong).view(like.sizes()).to(like.scalar_type());
}

Fields made_up_element(const Fields& like, std::int64_t salt) {
  Fields element;
  for (const at::Tensor& field : like) {
    element.push_back(made_up(field, salt, static_cast<std::int64_t>(element.size())));
  }
  return element;
}

GraphProbe probe(const DatasetFunction& function, const Nest& structure, Fields element) {
  GraphProbe made;
  made.nodes = ops_of(function.call(structure, element));
  std::unordered_map<const Node*, std::size_t> position;
  for (const NodePtr& node : made.nodes) {
    std::vector<std::size_t>& inputs = made.inputs.emplace_back();
    for (const NodePtr& input : node->inputs()) inputs.push_back(position.at(input.get()));
    position.emplace(node.get(), position.size());
  }
  made.element = std::move(element);
  return made;
}

bool are_equal(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  if (StringTensor::is(a)) return StringTensor::of(a) == StringTensor::of(b);
  return at::equal(a, b);
}

bool are_equal(const Nest& a, const Nest& b) {
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Nest::Kind::null:
      return true;
    case Nest::Kind::tensor:
      return are_equal(a.tensor(), b.tensor());
    case Nest::Kind::integer:
      return a.integer() == b.integer();
    case Nest::Kind::real:
      return a.real() == b.real();
    case Nest::Kind::boolean:
      return a.boolean() == b.boolean();
    case Nest::Kind::text:
      return a.text() == b.text();
    case Nest::Kind::list:
    case Nest::Kind::tuple:
      return std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(),
                        [](const Nest& x, const Nest& y) { return are_equal(x, y); });
    case Nest::Kind::map:
      return std::equal(a.entries().begin(), a.entries().end(), b.entries().begin(),
                        b.entries().end(), [](const auto& x, const auto& y) {
                          return x.first == y.first && are_equal(x.second, y.second);
                        });
    case Nest::Kind::handle:
      break;
  }
  return false;
}

bool is_integer_scalar(const at::Tensor& field) {
  return !StringTensor::is(field) && field.dim() == 0 &&
         c10::isIntegralType(field.scalar_type(), /*includeBool=*/false);
}

at::Tensor in_sizes(const at::Tensor& field, const std::vector<std::int64_t>& sizes) {
  if (StringTensor::is(field)) return StringTensor::of(field).reshaped(sizes);
  return field.reshape(sizes);
}

bool is_field(const Nest& value, const at::Tensor& field) {
  switch (value.kind()) {
    case Nest::Kind::integer:
      return is_integer_scalar(field) && field.item().toLong() == value.integer();
    case Nest::Kind::text:
      return StringTensor::is(field) && field.dim() == 0 &&
             StringTensor::of(field).value() == value.text();
    case Nest::Kind::tensor: {
      const at::Tensor& tensor = value.tensor();
      return tensor.scalar_type() == field.scalar_type() &&
             c10::multiply_integers(tensor.sizes()) == c10::multiply_integers(field.sizes()) &&
             are_equal(tensor, in_sizes(field, tensor.sizes().vec()));
    }
    default:
      return false;
  }
}

Nest hole_of(std::size_t field, const std::vector<Nest>& values,
             const std::vector<const Fields*>& elements) {
  const Nest::Kind kind = values[0].kind();
  Nest sizes;
  if (kind == Nest::Kind::tensor) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i].tensor().sizes() == (*elements[i])[field].sizes()) continue;
      const auto given = values[0].tensor().sizes();
      sizes = Nest::list(Nest::Items(given.begin(), given.end()));
    }
  }
  return Nest::map({{kField, static_cast<std::int64_t>(field)},
                    {kAs, std::string(name_of(kind))},
                    {kSizes, std::move(sizes)}});
}

// Whether filled_hole() can produce the values' shapes: all values have the same one, or each has
// that of the field.
bool have_one_shape(std::size_t field, const std::vector<Nest>& values,
                    const std::vector<const Fields*>& elements) {
  if (values[0].kind() != Nest::Kind::tensor) return true;
  bool are_the_fields = true;
  bool are_the_same = true;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto sizes = values[i].tensor().sizes();
    are_the_fields = are_the_fields && sizes == (*elements[i])[field].sizes();
    are_the_same = are_the_same && sizes == values[0].tensor().sizes();
  }
  return are_the_fields || are_the_same;
}

std::optional<Nest> common_leaf(const std::vector<Nest>& values,
                                const std::vector<const Fields*>& elements) {
  if (std::ranges::all_of(values, [&](const Nest& value) { return are_equal(value, values[0]); })) {
    return values[0];
  }
  for (std::size_t field = 0; field < elements[0]->size(); ++field) {
    bool is_the_field = true;
    for (std::size_t i = 0; i < values.size(); ++i) {
      is_the_field = is_the_field && values[i].kind() == values[0].kind() &&
                     is_field(values[i], (*elements[i])[field]);
    }
    if (is_the_field && have_one_shape(field, values, elements)) {
      return hole_of(field, values, elements);
    }
  }
  return std::nullopt;
}

std::optional<Nest> common_items(const std::vector<Nest>& values,
                                 const std::vector<const Fields*>& elements) {
  Nest::Items items;
  for (std::size_t i = 0; i < values[0].items().size(); ++i) {
    std::vector<Nest> parts;
    for (const Nest& value : values) {
      if (value.items().size() != values[0].items().size()) return std::nullopt;
      parts.push_back(value.items()[i]);
    }
    std::optional<Nest> item = common_value(parts, elements);
    if (!item) return std::nullopt;
    items.push_back(std::move(*item));
  }
  return values[0].kind() == Nest::Kind::list ? Nest::list(std::move(items))
                                              : Nest::tuple(std::move(items));
}

std::optional<Nest> common_entries(const std::vector<Nest>& values,
                                   const std::vector<const Fields*>& elements) {
  Nest::Map entries;
  for (const auto& [key, unused] : values[0].entries()) {
    std::vector<Nest> parts;
    for (const Nest& value : values) {
      const auto found = value.entries().find(key);
      if (found == value.entries().end() || value.entries().size() != values[0].entries().size()) {
        return std::nullopt;
      }
      parts.push_back(found->second);
    }
    std::optional<Nest> entry = common_value(parts, elements);
    if (!entry) return std::nullopt;
    entries.emplace(key.starts_with(kMark) ? kMark + key : key, std::move(*entry));
  }
  return Nest::map(std::move(entries));
}

}  // namespace

void fail_template(const char* expected) {
  internal::throw_error(ErrorCode::data_loss, "[data.deserialize] expected ", expected,
                        " in a dataset function's graph");
}

std::vector<GraphProbe> probe_graphs(const DatasetFunction& function, const Node& input) {
  const std::vector<Fields> examples = draw_examples(input, Purpose::preview, {});
  const Nest structure = input.structure();
  std::vector<GraphProbe> probes;
  probes.push_back(probe(function, structure, examples[0]));
  try {
    probes.push_back(probe(function, structure, made_up_element(examples[0], 1)));
    const Fields resized = with_other_sizes(examples[0], input.spec());
    probes.push_back(probe(function, structure, made_up_element(resized, 2)));
  } catch (...) {
    throw current_error().during(
        "calling a dataset function for a made-up element, to see what it does with its values");
  }
  return probes;
}

std::optional<Nest> common_value(const std::vector<Nest>& values,
                                 const std::vector<const Fields*>& elements) {
  const bool are_alike = std::ranges::all_of(
      values, [&](const Nest& value) { return value.kind() == values[0].kind(); });
  if (!are_alike || values[0].is_leaf()) return common_leaf(values, elements);
  return values[0].kind() == Nest::Kind::map ? common_entries(values, elements)
                                             : common_items(values, elements);
}

bool is_hole(const Nest& nest) {
  return nest.kind() == Nest::Kind::map && nest.entries().contains(kField);
}

std::string key_in_graph(const std::string& key) {
  return key.starts_with(kMark) ? key.substr(1) : key;
}

Nest filled_hole(const Nest& hole, const Fields& element) {
  const Nest::Map& parts = hole.entries();
  if (parts.size() != 3 || !parts.contains(kAs) || !parts.contains(kSizes)) fail_template("a hole");
  const std::int64_t index = parts.at(kField).integer();
  if (index < 0 || index >= static_cast<std::int64_t>(element.size())) {
    fail_template("the number of a field");
  }
  const at::Tensor& field = element[static_cast<std::size_t>(index)];
  const std::string& kind = parts.at(kAs).text();
  if (kind == name_of(Nest::Kind::integer)) {
    if (!is_integer_scalar(field)) fail_template("a field that is an integer");
    return field.item().toLong();
  }
  if (kind == name_of(Nest::Kind::text)) {
    if (!StringTensor::is(field)) fail_template("a field that is a string");
    return std::string(StringTensor::of(field).value());
  }
  if (kind != name_of(Nest::Kind::tensor)) fail_template("a kind of hole");
  if (parts.at(kSizes).is_null()) return field;
  std::vector<std::int64_t> sizes;
  for (const Nest& size : parts.at(kSizes).items()) sizes.push_back(size.integer());
  if (c10::multiply_integers(sizes) != c10::multiply_integers(field.sizes()))
    fail_template("sizes that a field fits");
  return in_sizes(field, sizes);
}

}  // namespace cohort::data
