// SPDX-License-Identifier: Apache-2.0
#include "tests/interop/json_pipeline.h"

#include "cohort/core/error.h"
#include "cohort/data/dataset.h"
#include "cohort/data/example.h"

namespace cohort::interop {
namespace {

at::ScalarType dtype_of(const std::string& name) {
  for (const at::ScalarType dtype : {at::ScalarType::Int, at::ScalarType::Long,
                                     at::ScalarType::Float, at::ScalarType::Double, kString}) {
    if (name == dtype_name(dtype)) return dtype;
  }
  internal::throw_error(ErrorCode::invalid_argument, "[interop] expected a dtype, got '", name,
                        "'");
}

Nest default_of(const Json& json) {
  if (json.is_string()) return Nest(from_hex(json.get<std::string>()));
  if (json.is_number_float()) return Nest(json.get<double>());
  return Nest(json.get<std::int64_t>());
}

std::optional<Nest> default_in(const Json& json) {
  if (!json.contains("default")) return std::nullopt;
  return default_of(json["default"]);
}

FeatureSpecs feature_specs_of(const Json& json) {
  FeatureSpecs specs;
  for (const auto& [name, feature] : json.items()) {
    specs.emplace(name, FeatureSpec{.dtype = dtype_of(feature.at("dtype").get<std::string>()),
                                    .sizes = feature.value("sizes", std::vector<std::int64_t>()),
                                    .default_value = default_in(feature),
                                    .is_variable_length = feature.value("is_variable", false)});
  }
  return specs;
}

CsvOptions csv_options_of(const Json& json, const FileOptions& file) {
  CsvOptions options{.columns = {}, .header = json.value("header", false), .file = file};
  options.delimiter = json.value("delimiter", ",").at(0);
  options.na_value = json.value("na_value", "");
  options.select_columns = json.value("select_columns", std::vector<std::int64_t>());
  for (const Json& column : json.at("columns")) {
    options.columns.push_back({.dtype = dtype_of(column.at("dtype").get<std::string>()),
                               .default_value = default_in(column)});
  }
  return options;
}

Dataset source_of(const Json& json) {
  const auto op = json.at("op").get<std::string>();
  const StringTensor files(json.at("files").get<std::vector<std::string>>());
  const FileOptions file{.compression = parse_compression(json.value("compression", ""))};
  if (op == "tf_record") return Dataset::tf_record(files, file);
  if (op == "text_line") return Dataset::text_line(files, file);
  if (op == "csv") return Dataset::csv(files, csv_options_of(json, file));
  COHORT_CHECK(op == "fixed_length_record", ErrorCode::invalid_argument,
               "[interop] expected an op that reads files, got '", op, "'");
  return Dataset::fixed_length_record(files,
                                      {.record_bytes = json.at("record_bytes").get<std::int64_t>(),
                                       .header_bytes = json.value("header_bytes", std::int64_t{0}),
                                       .footer_bytes = json.value("footer_bytes", std::int64_t{0}),
                                       .file = file});
}

Dataset dataset_of(const Json& json) {
  Dataset dataset = source_of(json);
  if (json.contains("shard")) {
    dataset =
        dataset.shard(json["shard"][0].get<std::int64_t>(), json["shard"][1].get<std::int64_t>());
  }
  if (json.contains("batch")) dataset = dataset.batch(json["batch"].get<std::int64_t>());
  if (json.contains("features")) {
    dataset = dataset.parse_example(feature_specs_of(json["features"]));
  }
  return dataset;
}

}  // namespace

Json elements_of(const Json& pipeline) {
  Json elements = Json::array();
  for (const Nest& element : dataset_of(pipeline)) {
    Json fields = Json::array();
    for (const at::Tensor& field : element.flatten_tensors()) fields.push_back(json_of(field));
    elements.push_back(std::move(fields));
  }
  return elements;
}

}  // namespace cohort::interop
