// SPDX-License-Identifier: Apache-2.0
// tf.train.Example: bytes, features and parsing into tensors.
#include "cohort/data/example.h"
#include "tests/conformance/kinds.h"
#include "tests/conformance/values.h"

namespace cohort::conformance {
namespace {

Feature feature_of(const Json& json) {
  if (json.contains("int64")) return json["int64"].get<Int64List>();
  if (json.contains("bytes")) {
    BytesList values;
    for (const Json& value : json["bytes"]) values.push_back(bytes_of(value));
    return values;
  }
  if (json.contains("float")) {
    const at::Tensor values =
        tensor_of(Json::array({"float32", Json::array({json["float"].size()}), json["float"]}));
    return FloatList(values.data_ptr<float>(), values.data_ptr<float>() + values.numel());
  }
  if (!json.empty()) throw CaseFault("unknown feature " + brief(json, 120));
  return std::monostate();
}

// A feature as JSON; floats are written like the data of leaves, so that both sides are comparable.
Json json_of_feature(const Feature& feature) {
  if (const auto* integers = std::get_if<Int64List>(&feature)) return {{"int64", *integers}};
  if (const auto* bytes = std::get_if<BytesList>(&feature)) {
    Json values = Json::array();
    for (const std::string& value : *bytes) values.push_back(text_of(value));
    return {{"bytes", std::move(values)}};
  }
  if (const auto* floats = std::get_if<FloatList>(&feature)) {
    Json values = Json::array();
    for (const float value : *floats) values.push_back(json_of_number(value));
    return {{"float", std::move(values)}};
  }
  return Json::object();
}

// A default: a scalar for all values, or a list with one value per element of the shape.
Nest default_of(const Json& value, const FeatureSpec& spec) {
  // If the number of values does not fit the shape, passes them on: the library must refuse them.
  const auto count = static_cast<std::int64_t>(flat(value).size());
  std::int64_t expected = 1;
  for (const std::int64_t size : spec.sizes) expected *= size;
  Json shape = Json::array();
  if (value.is_array()) shape = count == expected ? Json(spec.sizes) : Json::array({count});
  const std::string dtype = spec.dtype == kString ? "string" : dtype_name(spec.dtype);
  return tensor_of(Json::array({dtype, shape, value}));
}

FeatureSpecs feature_specs_of(const Json& json) {
  FeatureSpecs specs;
  for (const auto& [key, given] : json.items()) {
    FeatureSpec spec;
    spec.dtype = dtype_of(member(given, "dtype").get<std::string>());
    const auto kind = member(given, "kind").get<std::string>();
    if (kind != "fixed" && kind != "var") throw CaseFault("unknown kind of feature '" + kind + "'");
    spec.is_variable_length = kind == "var";
    spec.sizes = member_or(given, "shape", std::vector<std::int64_t>());
    const Json otherwise = member_or(given, "default", Json());
    if (!otherwise.is_null()) spec.default_value = default_of(otherwise, spec);
    specs.emplace(key, std::move(spec));
  }
  return specs;
}

}  // namespace

Json run_example_encode(const Json& test_case) {
  Example example;
  for (const auto& [key, feature] : member(test_case, "features").items()) {
    example.features.emplace(key, feature_of(feature));
  }
  return {{"hex", to_hex(example.serialize())}};
}

Json run_example_decode(const Json& test_case) {
  try {
    const Example example = Example::parse(from_hex(member(test_case, "hex").get<std::string>()));
    Json features = Json::object();
    for (const auto& [key, feature] : example.features) features[key] = json_of_feature(feature);
    return {{"features", std::move(features)}};
  } catch (...) {
    return {{"error", caught_error()}};
  }
}

Json run_parse_example(const Json& test_case) {
  try {
    const ExampleParser parser(feature_specs_of(member(test_case, "feature_spec")));
    const Nest parsed =
        parser.parse(StringTensor(from_hex(member(test_case, "hex").get<std::string>())));
    Json leaves = Json::object();
    for (const auto& [key, value] : parsed.entries()) leaves[key] = json_of(value);
    return {{"parsed", std::move(leaves)}};
  } catch (...) {
    return {{"error", caught_error()}};
  }
}

}  // namespace cohort::conformance
