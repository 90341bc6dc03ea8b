// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/strategy_tensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sparse_coo_tensor.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "cohort/core/string_tensor.h"
#include "cohort/core/tensor_spec.h"
#include "tests/conformance/values.h"

namespace cohort::conformance::strategy {
namespace {

struct ShortName {
  std::string_view name;
  at::ScalarType dtype;
};
constexpr std::array<ShortName, 11> kShortNames = {{{"f16", at::ScalarType::Half},
                                                    {"bf16", at::ScalarType::BFloat16},
                                                    {"f32", at::ScalarType::Float},
                                                    {"f64", at::ScalarType::Double},
                                                    {"i8", at::ScalarType::Char},
                                                    {"i16", at::ScalarType::Short},
                                                    {"i32", at::ScalarType::Int},
                                                    {"i64", at::ScalarType::Long},
                                                    {"u8", at::ScalarType::Byte},
                                                    {"bool", at::ScalarType::Bool},
                                                    {"str", kString}}};

std::int64_t whole_number_of(const Json& json) {
  if (json.is_boolean()) return json.get<bool>() ? 1 : 0;
  if (json.is_number_integer()) return json.get<std::int64_t>();
  throw CaseFault("expected an integer or a bool, got " + brief(json, 80));
}

at::Tensor read_strings(const std::vector<std::int64_t>& sizes, const Json& values) {
  std::vector<std::string> texts;
  for (const Json& value : values) texts.push_back(bytes_of(value));
  return StringTensor(sizes, texts).tensor();
}

bool is_floating(at::ScalarType dtype) { return dtype != kString && at::isFloatingType(dtype); }

Json write_values(const at::Tensor& tensor) {
  Json values = Json::array();
  if (StringTensor::is(tensor)) {
    const StringTensor texts = StringTensor::of(tensor);
    for (std::int64_t i = 0; i < texts.numel(); ++i) values.push_back(text_of(texts[i]));
    return values;
  }
  const bool is_real = is_floating(tensor.scalar_type());
  const at::Tensor flat_values =
      tensor.detach().cpu().to(is_real ? at::kDouble : at::kLong).contiguous();
  for (std::int64_t i = 0; i < flat_values.numel(); ++i) {
    if (is_real) {
      values.push_back(json_of_number(flat_values.data_ptr<double>()[i]));
    } else if (tensor.scalar_type() == at::kBool) {
      values.push_back(flat_values.data_ptr<std::int64_t>()[i] != 0);
    } else {
      values.push_back(flat_values.data_ptr<std::int64_t>()[i]);
    }
  }
  return values;
}

}  // namespace

at::ScalarType scalar_type_of(const std::string& name) {
  for (const ShortName& known : kShortNames) {
    if (known.name == name) return known.dtype;
  }
  throw CaseFault("unknown dtype '" + name + "'");
}

std::string short_name_of(at::ScalarType dtype) {
  for (const ShortName& known : kShortNames) {
    if (known.dtype == dtype) return std::string(known.name);
  }
  return dtype_name(dtype);
}

bool is_tensor_json(const Json& json) {
  return json.is_object() && json.contains("t") && json.contains("s") && json.contains("v");
}

at::Tensor read_tensor(const Json& json) {
  const at::ScalarType dtype = scalar_type_of(member(json, "t").get<std::string>());
  const auto sizes = member(json, "s").get<std::vector<std::int64_t>>();
  const Json& values = member(json, "v");
  if (dtype == kString) return read_strings(sizes, values);
  const bool is_real = is_floating(dtype);
  const at::Tensor wide = at::empty(sizes, at::TensorOptions(is_real ? at::kDouble : at::kLong));
  if (!values.is_array() || static_cast<std::size_t>(wide.numel()) != values.size()) {
    throw CaseFault("expected as many values as the shape says, got " + brief(json, 120));
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (is_real) {
      wide.data_ptr<double>()[i] = real_of(values[i]);
    } else {
      wide.data_ptr<std::int64_t>()[i] = whole_number_of(values[i]);
    }
  }
  return wide.to(dtype);
}

Json write_tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  if (tensor.is_sparse()) {
    const Rows rows = rows_of(tensor);
    return {{"slices",
             {{"values", write_tensor(rows.values)},
              {"indices", write_tensor(rows.indices)},
              {"shape", tensor.sizes().vec()}}}};
  }
  const auto sizes = StringTensor::is(tensor) ? Json(StringTensor::of(tensor).sizes())
                                              : Json(tensor.sizes().vec());
  const at::ScalarType dtype = StringTensor::is(tensor) ? kString : tensor.scalar_type();
  return {{"t", short_name_of(dtype)}, {"s", sizes}, {"v", write_values(tensor)}};
}

at::Tensor sparse_rows(const Rows& rows, const std::vector<std::int64_t>& sizes) {
  return at::sparse_coo_tensor(rows.indices.to(at::kLong).unsqueeze(0), rows.values, sizes);
}

Rows rows_of(const at::Tensor& sparse) {
  return {sparse._indices().select(0, 0).contiguous(), sparse._values()};
}

bool is_number_equal(double a, double b, double tolerance) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (a == b) return true;
  return std::abs(a - b) <= tolerance * std::max({1.0, std::abs(a), std::abs(b)});
}

bool is_tensor_equal(const Json& expected, const Json& got, double tolerance) {
  if (expected["t"] != got["t"] || expected["s"] != got["s"]) return false;
  // Through the dtype, since a case may write 0.1 for the float32 next to it.
  const Json wanted = write_tensor(read_tensor(expected))["v"];
  const Json& values = got["v"];
  if (!is_floating(scalar_type_of(expected["t"]))) return wanted == values;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (!is_number_equal(real_of(wanted[i]), real_of(values[i]), tolerance)) return false;
  }
  return wanted.size() == values.size();
}

}  // namespace cohort::conformance::strategy
