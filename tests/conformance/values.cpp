// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/values.h"

#include <ATen/ops/empty.h>

#include <array>
#include <cmath>
#include <limits>

namespace cohort::conformance {

Json json_of_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

double real_of(const Json& json) {
  if (json.is_number()) return json.get<double>();
  const std::string name = json.is_string() ? json.get<std::string>() : "";
  if (name == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (name == "inf") return std::numeric_limits<double>::infinity();
  if (name == "-inf") return -std::numeric_limits<double>::infinity();
  throw CaseFault("expected a number, got " + brief(json, 80));
}

namespace {

struct DtypeName {
  std::string_view name;
  at::ScalarType dtype;
};
constexpr std::array<DtypeName, 9> kDtypes = {{{"int8", at::ScalarType::Char},
                                               {"int16", at::ScalarType::Short},
                                               {"int32", at::ScalarType::Int},
                                               {"int64", at::ScalarType::Long},
                                               {"uint8", at::ScalarType::Byte},
                                               {"float32", at::ScalarType::Float},
                                               {"float64", at::ScalarType::Double},
                                               {"bool", at::ScalarType::Bool},
                                               {"string", kString}}};

bool is_dtype(const Json& json) {
  if (!json.is_string()) return false;
  const auto& name = json.get_ref<const std::string&>();
  for (const DtypeName& known : kDtypes) {
    if (known.name == name) return true;
  }
  return false;
}

void flatten_into(const Json& data, Json& flat) {
  if (!data.is_array()) {
    flat.push_back(data);
    return;
  }
  for (const Json& part : data) flatten_into(part, flat);
}

template <class T>
T scalar_of(const Json& json) {
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(real_of(json));
  } else {
    if (!json.is_number_integer() && !json.is_boolean()) {
      throw CaseFault("expected an integer or a bool, got " + brief(json, 80));
    }
    return json.is_boolean() ? static_cast<T>(json.get<bool>())
                             : static_cast<T>(json.get<std::int64_t>());
  }
}

template <class T>
Json json_of_scalar(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return json_of_number(static_cast<double>(value));
  } else if constexpr (std::is_same_v<T, bool>) {
    return value;
  } else {
    return static_cast<std::int64_t>(value);
  }
}

// Calls fn with a value of the C++ type of a dtype of numbers.
template <class F>
void with_type(at::ScalarType dtype, F fn) {
  switch (dtype) {
    case at::ScalarType::Char:
      return fn(std::int8_t{});
    case at::ScalarType::Short:
      return fn(std::int16_t{});
    case at::ScalarType::Int:
      return fn(std::int32_t{});
    case at::ScalarType::Long:
      return fn(std::int64_t{});
    case at::ScalarType::Byte:
      return fn(std::uint8_t{});
    case at::ScalarType::Float:
      return fn(float{});
    case at::ScalarType::Double:
      return fn(double{});
    case at::ScalarType::Bool:
      return fn(bool{});
    default:
      throw CaseFault("no case file has the dtype " + dtype_name(dtype));
  }
}

// [dtype, shape, data] with flat data, or a bare value for a scalar.
Json leaf(const std::string& dtype, Json shape, Json data) {
  if (shape.empty() && data.size() == 1) data = Json(data[0]);
  return Json::array({dtype, std::move(shape), std::move(data)});
}

// One value of a leaf after a conversion to the dtype and back.
Json canonical_scalar(at::ScalarType dtype, const Json& value) {
  if (dtype == kString) return text_of(bytes_of(value));
  Json result;
  with_type(dtype, [&](auto zero) { result = json_of_scalar(scalar_of<decltype(zero)>(value)); });
  return result;
}

}  // namespace

Json flat(const Json& data) {
  Json all = Json::array();
  flatten_into(data, all);
  return all;
}

at::ScalarType dtype_of(const std::string& name) {
  for (const DtypeName& known : kDtypes) {
    if (known.name == name) return known.dtype;
  }
  throw CaseFault("unknown dtype '" + name + "'");
}

std::string from_hex(std::string_view hex) {
  std::string bytes;
  if (hex.size() % 2 != 0) throw CaseFault("expected pairs of hexadecimal digits");
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

std::string to_hex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  for (const char byte : bytes) {
    const auto value = static_cast<unsigned char>(byte);
    hex.push_back(kDigits[value >> 4]);
    hex.push_back(kDigits[value & 15]);
  }
  return hex;
}

std::string bytes_of(const Json& text) {
  if (text.is_string()) return text.get<std::string>();
  if (text.is_object() && text.contains("hex")) {
    return from_hex(text["hex"].get_ref<const std::string&>());
  }
  throw CaseFault("expected a text or {\"hex\": …}, got " + brief(text, 80));
}

Json text_of(std::string_view bytes) {
  for (const char byte : bytes) {
    const auto value = static_cast<unsigned char>(byte);
    // A JSON string holds printable ASCII and the escapes \n, \r and \t; other bytes need hex.
    if ((value < 0x20 && value != '\n' && value != '\r' && value != '\t') || value > 0x7e) {
      return Json::object({{"hex", to_hex(bytes)}});
    }
  }
  return std::string(bytes);
}

bool is_leaf(const Json& json) {
  return json.is_array() && json.size() == 3 && is_dtype(json[0]) && json[1].is_array();
}

bool is_leaf_spec(const Json& json) {
  return json.is_array() && json.size() == 2 && is_dtype(json[0]) &&
         (json[1].is_array() || json[1].is_null());
}

at::Tensor tensor_of(const Json& leaf) {
  if (!is_leaf(leaf)) throw CaseFault("expected [dtype, shape, data], got " + brief(leaf, 120));
  const at::ScalarType dtype = dtype_of(leaf[0]);
  const auto sizes = leaf[1].get<std::vector<std::int64_t>>();
  const Json data = flat(leaf[2]);
  if (dtype == kString) {
    std::vector<std::string> values;
    for (const Json& value : data) values.push_back(bytes_of(value));
    return StringTensor(sizes, values);
  }
  at::Tensor tensor = at::empty(sizes, at::TensorOptions().dtype(dtype));
  if (static_cast<std::size_t>(tensor.numel()) != data.size()) {
    throw CaseFault("expected as many values as the shape says, got " + brief(leaf, 120));
  }
  with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    T* values = tensor.data_ptr<T>();
    for (const Json& value : data) *values++ = scalar_of<T>(value);
  });
  return tensor;
}

Nest nest_of(const Json& value) {
  if (is_leaf(value)) return tensor_of(value);
  if (value.is_object() && value.contains("tuple")) {
    Nest::Items items;
    for (const Json& item : value["tuple"]) items.push_back(nest_of(item));
    return Nest::tuple(std::move(items));
  }
  if (value.is_object() && value.contains("dict")) {
    Nest::Map entries;
    for (const auto& [key, item] : value["dict"].items()) entries.emplace(key, nest_of(item));
    return Nest::map(std::move(entries));
  }
  throw CaseFault("expected a value of tensors, got " + brief(value, 120));
}

TensorSpec tensor_spec_of(const Json& spec) {
  if (!is_leaf_spec(spec)) throw CaseFault("expected [dtype, shape], got " + brief(spec, 120));
  TensorSpec result{.dtype = dtype_of(spec[0]), .sizes = std::nullopt};
  if (spec[1].is_null()) return result;
  result.sizes.emplace();
  for (const Json& size : spec[1]) {
    result.sizes->push_back(size.is_null() ? -1 : size.get<std::int64_t>());
  }
  return result;
}

namespace {

Nest add_spec(const Json& spec, std::vector<TensorSpec>& fields) {
  if (spec.is_object() && spec.contains("tuple")) {
    Nest::Items items;
    for (const Json& item : spec["tuple"]) items.push_back(add_spec(item, fields));
    return Nest::tuple(std::move(items));
  }
  if (spec.is_object() && spec.contains("dict")) {
    Nest::Map entries;  // the JSON's keys are sorted, as flatten order requires
    for (const auto& [key, item] : spec["dict"].items()) {
      entries.emplace(key, add_spec(item, fields));
    }
    return Nest::map(std::move(entries));
  }
  fields.push_back(tensor_spec_of(spec));
  return Nest(static_cast<std::int64_t>(fields.size()) - 1);
}

// The JSON of a nest; leaf_json converts each leaf.
template <class F>
Json structured(const Nest& nest, const F& leaf_json) {
  switch (nest.kind()) {
    case Nest::Kind::list:
    case Nest::Kind::tuple: {
      Json items = Json::array();
      for (const Nest& item : nest.items()) items.push_back(structured(item, leaf_json));
      return {{"tuple", std::move(items)}};
    }
    case Nest::Kind::map: {
      Json entries = Json::object();
      for (const auto& [key, item] : nest.entries()) entries[key] = structured(item, leaf_json);
      return {{"dict", std::move(entries)}};
    }
    default:
      return leaf_json(nest);
  }
}

}  // namespace

ElementSpec spec_of(const Json& spec) {
  ElementSpec result;
  result.structure = add_spec(spec, result.fields);
  return result;
}

Json json_of(const at::Tensor& tensor) {
  Json data = Json::array();
  if (StringTensor::is(tensor)) {
    const StringTensor strings = StringTensor::of(tensor);
    for (std::int64_t i = 0; i < strings.numel(); ++i) data.push_back(text_of(strings[i]));
    return leaf("string", strings.sizes(), std::move(data));
  }

  const at::Tensor rows = tensor.detach().cpu().contiguous();
  with_type(rows.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const T* values = rows.data_ptr<T>();
    for (std::int64_t i = 0; i < rows.numel(); ++i) data.push_back(json_of_scalar(values[i]));
  });
  return leaf(dtype_name(rows.scalar_type()), rows.sizes().vec(), std::move(data));
}

Json json_of(const Nest& value) {
  return structured(value, [](const Nest& leaf_value) -> Json {
    switch (leaf_value.kind()) {
      case Nest::Kind::tensor:
        return json_of(leaf_value.tensor());
      case Nest::Kind::integer:
        return leaf("int64", Json::array(), Json::array({leaf_value.integer()}));
      case Nest::Kind::real:
        return leaf("float64", Json::array(), Json::array({json_of_number(leaf_value.real())}));
      case Nest::Kind::boolean:
        return leaf("bool", Json::array(), Json::array({leaf_value.boolean()}));
      case Nest::Kind::text:
        return leaf("string", Json::array(), Json::array({text_of(leaf_value.text())}));
      default:
        return std::string(name_of(leaf_value.kind()));
    }
  });
}

Json json_of(const TensorSpec& spec) {
  Json sizes = nullptr;
  if (spec.sizes) {
    sizes = Json::array();
    for (const std::int64_t size : *spec.sizes) sizes.push_back(size < 0 ? Json() : Json(size));
  }
  return Json::array({spec.dtype == kString ? "string" : dtype_name(spec.dtype), sizes});
}

Json json_of(const ElementSpec& spec) {
  return structured(spec.structure, [&](const Nest& leaf_index) {
    return json_of(spec.fields.at(static_cast<std::size_t>(leaf_index.integer())));
  });
}

Json json_of(const Error& error) {
  std::string name;
  bool is_start = true;
  for (const char letter : name_of(error.code())) {
    if (letter != '_') name.push_back(is_start ? static_cast<char>(letter - 'a' + 'A') : letter);
    is_start = letter == '_';
  }
  return {{"error", name}, {"message", error.message()}};
}

Json caught_error() {
  try {
    throw;
  } catch (const CaseFault&) {
    throw;
  } catch (...) {
    return json_of(current_error());
  }
}

Json canonical(const Json& json) {
  if (is_leaf(json)) {
    const at::ScalarType dtype = dtype_of(json[0]);
    Json data = Json::array();
    for (const Json& value : flat(json[2])) data.push_back(canonical_scalar(dtype, value));
    return leaf(json[0], json[1], std::move(data));
  }
  if (json.is_array()) {
    Json items = Json::array();
    for (const Json& item : json) {
      // Only items of a list are bytes: a whole `expect` may also have just the member "hex".
      const bool is_bytes = item.is_object() && item.size() == 1 && item.contains("hex");
      items.push_back(is_bytes ? text_of(bytes_of(item)) : canonical(item));
    }
    return items;
  }
  if (!json.is_object()) return json;
  if (json.contains("error") && json["error"].is_string()) return {{"error", json["error"]}};
  Json entries = Json::object();
  for (const auto& [key, item] : json.items()) entries[key] = canonical(item);
  return entries;
}

}  // namespace cohort::conformance
