// SPDX-License-Identifier: Apache-2.0
#include "tests/interop/json_form.h"

#include <bit>
#include <charconv>

#include "cohort/core/error.h"
#include "cohort/core/string_tensor.h"
#include "cohort/core/tensor_spec.h"

namespace cohort::interop {
namespace {

Json json_of_feature(const Feature& feature) {
  Json values = Json::array();
  if (const auto* integers = std::get_if<Int64List>(&feature)) return {{"int64", *integers}};
  if (const auto* bytes = std::get_if<BytesList>(&feature)) {
    for (const std::string& value : *bytes) values.push_back(to_hex(value));
    return {{"bytes", std::move(values)}};
  }
  if (const auto* floats = std::get_if<FloatList>(&feature)) {
    for (const float value : *floats) values.push_back(std::bit_cast<std::uint32_t>(value));
    return {{"float", std::move(values)}};
  }
  return Json::object();
}

Feature feature_of(const Json& json) {
  if (json.contains("int64")) return json["int64"].get<Int64List>();
  if (json.contains("bytes")) {
    BytesList values;
    for (const Json& hex : json["bytes"]) values.push_back(from_hex(hex.get<std::string>()));
    return values;
  }
  if (json.contains("float")) {
    FloatList values;
    for (const Json& bits : json["float"]) {
      values.push_back(std::bit_cast<float>(bits.get<std::uint32_t>()));
    }
    return values;
  }
  COHORT_CHECK(json.empty(), ErrorCode::invalid_argument,
               "[interop] expected a feature of int64, float or bytes, got ", json.dump());
  return std::monostate();
}

// The elements of a tensor of type T, with their bits as type As of the same size.
template <class T, class As = T>
Json numbers_of(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.contiguous();
  Json values = Json::array();
  for (std::int64_t i = 0; i < dense.numel(); ++i) {
    values.push_back(std::bit_cast<As>(dense.data_ptr<T>()[i]));
  }
  return values;
}

Json values_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::ScalarType::Int:
      return numbers_of<std::int32_t>(tensor);
    case at::ScalarType::Long:
      return numbers_of<std::int64_t>(tensor);
    case at::ScalarType::Float:
      return numbers_of<float, std::uint32_t>(tensor);
    case at::ScalarType::Double:
      return numbers_of<double, std::uint64_t>(tensor);
    default:
      internal::throw_error(ErrorCode::invalid_argument,
                            "[interop] expected a tensor of int32, int64, float32 or float64, got ",
                            dtype_name(tensor.scalar_type()));
  }
}

}  // namespace

std::string to_hex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    unsigned value = 0;
    const char* begin = hex.data() + i;
    const char* end = hex.data() + std::min(hex.size(), i + 2);
    const auto [stop, error] = std::from_chars(begin, end, value, 16);
    COHORT_CHECK(error == std::errc() && stop == begin + 2, ErrorCode::invalid_argument,
                 "[interop] expected pairs of hexadecimal digits, got '", hex, "'");
    bytes += static_cast<char>(value);
  }
  return bytes;
}

Json json_of(const Features& features) {
  Json json = Json::object();
  for (const auto& [name, feature] : features) json[name] = json_of_feature(feature);
  return json;
}

Features features_of(const Json& json) {
  Features features;
  for (const auto& [name, feature] : json.items()) features.emplace(name, feature_of(feature));
  return features;
}

Json json_of(const SequenceExample& example) {
  Json lists = Json::object();
  for (const auto& [name, features] : example.feature_lists) {
    Json list = Json::array();
    for (const Feature& feature : features) list.push_back(json_of_feature(feature));
    lists[name] = std::move(list);
  }
  return {{"context", json_of(example.context)}, {"feature_lists", std::move(lists)}};
}

SequenceExample sequence_example_of(const Json& json) {
  SequenceExample example{.context = features_of(json.at("context")), .feature_lists = {}};
  for (const auto& [name, list] : json.at("feature_lists").items()) {
    std::vector<Feature>& features = example.feature_lists[name];
    for (const Json& feature : list) features.push_back(feature_of(feature));
  }
  return example;
}

Json json_of(const at::Tensor& tensor) {
  if (!StringTensor::is(tensor)) {
    return Json::array({dtype_name(tensor.scalar_type()), tensor.sizes().vec(), values_of(tensor)});
  }
  const StringTensor strings = StringTensor::of(tensor);
  Json values = Json::array();
  for (std::int64_t i = 0; i < strings.numel(); ++i) values.push_back(to_hex(strings[i]));
  return Json::array({"string", strings.sizes(), std::move(values)});
}

}  // namespace cohort::interop
