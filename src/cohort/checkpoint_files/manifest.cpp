// SPDX-License-Identifier: Apache-2.0
#include "cohort/checkpoint_files/manifest.h"

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "cohort/core/crc32c.h"
#include "cohort/core/error.h"
#include "cohort/variable/strict_json.h"

namespace cohort::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFormat = "cohort.checkpoint";
constexpr int kVersion = 2;

constexpr std::array kDtypes = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kByte,
                                at::kChar,  at::kShort,  at::kInt,  at::kLong,     at::kBool};

// Throws data_loss.
class Damage {
 public:
  explicit Damage(const std::string& path) : path_(path) {}
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    internal::throw_error(ErrorCode::data_loss, "[checkpoint.read] expected file '", path_,
                          "' to be the manifest of a checkpoint, got ", parts...,
                          "; it is damaged, or another program's");
  }

 private:
  const std::string& path_;
};

Json json_of(const TensorSpec& spec) {
  return {{"dtype", dtype_name(spec.dtype)}, {"shape", *spec.sizes}};
}

Json json_of(const TensorEntry& tensor) {
  Json json = json_of(tensor.spec);
  json["file"] = tensor.file;
  json["parts"] = Json::array();
  for (const PartEntry& part : tensor.parts) {
    Json& added = json["parts"].emplace_back(Json{part.first_row, part.rows, part.checksum});
    if (!part.file.empty()) added.push_back(part.file);
  }
  return json;
}

Json json_of(const VariableEntry& variable) {
  Json json = json_of(variable.spec);
  json["name"] = variable.name;
  json["slots"] = Json::array();
  for (const SlotsEntry& slots : variable.slots) {
    json["slots"].push_back(
        {{"optimizer", slots.optimizer}, {"rule", slots.rule}, {"tensors", slots.tensors}});
  }
  if (!variable.replicas.empty()) json["replicas"] = variable.replicas;
  if (variable.is_table()) {
    json["keys"] = variable.keys;
    json["counted_keys"] = variable.counted_keys;
    json["counts"] = variable.counts;
  }
  return json;
}

Json json_of(const StateEntry& state) {
  return {{"key", state.key},
          {"optimizer", state.optimizer},
          {"rule", state.rule},
          {"first_variable", state.first_variable},
          {"tensor", state.tensor}};
}

TensorSpec spec_of(const Json& json, const Damage& damage) {
  TensorSpec spec{.sizes = std::vector<std::int64_t>()};
  const auto name = json.at("dtype").get<std::string>();
  const auto* const found = std::find_if(kDtypes.begin(), kDtypes.end(),
                                         [&](auto type) { return dtype_name(type) == name; });
  if (found == kDtypes.end()) damage.fail("a dtype '", name, "'");
  spec.dtype = *found;
  for (const Json& size : json.at("shape")) {
    if (!size.is_number_unsigned()) damage.fail("a size that is no number of elements");
    spec.sizes->push_back(size.get<std::int64_t>());
    if (spec.sizes->back() < 0) damage.fail("a size of more than 2^63 elements");
  }
  return spec;
}

// A name with a folder in it could lead out of the checkpoint.
std::string file_of(const Json& json, const Damage& damage) {
  auto file = json.get<std::string>();
  if (file.empty() || file.front() == '.' || file.find('/') != std::string::npos)
    damage.fail("a file '", file, "'");
  return file;
}

// The parts must be in order, and unless others have some (`is_share`), all rows.
std::vector<PartEntry> parts_of(const Json& json, const TensorSpec& spec, bool is_share,
                                const Damage& damage) {
  std::vector<PartEntry> parts;
  std::int64_t next_row = 0;
  for (const Json& each : json) {
    PartEntry part{each.at(0).get<std::int64_t>(), each.at(1).get<std::int64_t>(),
                   each.at(2).get<std::uint32_t>()};
    if (each.size() == 4) part.file = file_of(each.at(3), damage);
    const bool is_next = is_share ? part.first_row >= next_row : part.first_row == next_row;
    const bool is_part = each.size() == 3 || each.size() == 4;
    if (!is_part || !is_next || part.rows <= 0 ||
        __builtin_add_overflow(part.first_row, part.rows, &next_row))
      damage.fail("a part that does not follow the one before");
    parts.push_back(std::move(part));
  }
  const std::int64_t rows = spec.sizes->empty() ? 1 : spec.sizes->front();
  if (is_share ? next_row > rows : next_row != rows)
    damage.fail("parts of a tensor with another number of rows");
  return parts;
}

VariableEntry variable_of(const Json& json, const Damage& damage) {
  VariableEntry variable{.name = json.at("name").get<std::string>(), .spec = spec_of(json, damage)};
  for (const Json& each : json.at("slots")) {
    variable.slots.push_back({each.at("optimizer").get<std::string>(),
                              each.at("rule").get<std::string>(),
                              each.at("tensors").get<std::vector<std::string>>()});
  }
  if (json.contains("replicas"))
    variable.replicas = json["replicas"].get<std::vector<std::string>>();
  if (json.contains("keys")) {
    variable.keys = json["keys"].get<std::string>();
    variable.counted_keys = json.at("counted_keys").get<std::string>();
    variable.counts = json.at("counts").get<std::string>();
  }
  return variable;
}

// Every name of a tensor must be one of a tensor.
void check_names(const Manifest& manifest, const Damage& damage) {
  const auto check = [&](const std::string& name) {
    if (!manifest.tensors.contains(name)) damage.fail("no tensor '", name, "'");
  };
  for (const VariableEntry& variable : manifest.variables) {
    check(variable.name);
    for (const std::string& name : variable.replicas) check(name);
    for (const SlotsEntry& slots : variable.slots)
      for (const std::string& name : slots.tensors) check(name);
    if (!variable.is_table()) continue;
    for (const std::string& name : {variable.keys, variable.counted_keys, variable.counts})
      check(name);
  }
  for (const StateEntry& state : manifest.states) check(state.tensor);
  for (const std::string& name : manifest.generators) check(name);
  for (const auto& [name, tensor] : manifest.positions) check(tensor);
}

Manifest manifest_of(const Json& json, bool is_share, const Damage& damage) {
  Manifest manifest{.step = json.at("step").get<std::int64_t>(),
                    .cohort = json.at("cohort").get<std::string>(),
                    .strategy = json.at("strategy").get<std::string>(),
                    .time = json.at("time").get<std::string>()};
  for (const auto& [name, tensor] : json.at("tensors").items()) {
    TensorEntry entry{.spec = spec_of(tensor, damage), .file = file_of(tensor.at("file"), damage)};
    entry.parts = parts_of(tensor.at("parts"), entry.spec, is_share, damage);
    manifest.tensors.emplace(name, std::move(entry));
  }
  for (const Json& variable : json.at("variables"))
    manifest.variables.push_back(variable_of(variable, damage));
  for (const Json& state : json.at("states")) {
    manifest.states.push_back(
        {state.at("key").get<std::string>(), state.at("optimizer").get<std::string>(),
         state.at("rule").get<std::string>(), state.at("first_variable").get<std::string>(),
         state.at("tensor").get<std::string>()});
  }
  manifest.generators = json.at("generators").get<std::vector<std::string>>();
  manifest.positions = json.at("positions").get<std::map<std::string, std::string>>();
  for (const auto& [name, value] : json.at("values").items())
    manifest.values.emplace(name, value.dump());
  if (!is_share) check_names(manifest, damage);
  return manifest;
}

// Readers of version 1 read what has no files of several writers.
int version_of(const Manifest& manifest) {
  for (const auto& [name, tensor] : manifest.tensors)
    for (const PartEntry& part : tensor.parts)
      if (!part.file.empty()) return kVersion;
  return 1;
}

Manifest parse(std::string_view text, const std::string& path, bool is_share) {
  const Damage damage(path);
  auto [json, has_repeated_key] = variable::parse_strict<Json>(text);
  if (!json.is_object() || json.value("format", Json()) != kFormat) damage.fail("something else");
  if (has_repeated_key) damage.fail("a key that occurs twice");
  const Json version = json.value("version", Json());
  COHORT_CHECK(!version.is_number_integer() || version.get<std::int64_t>() <= kVersion,
               ErrorCode::unimplemented, "[checkpoint.read] expected a checkpoint of version ",
               kVersion, " or older, got ", version.dump(), " (file '", path,
               "'); read it with the version of Cohort that has written it");
  try {
    const auto checksum = json.at("crc32c").get<std::uint32_t>();
    json.erase("crc32c");
    if (crc32c(json.dump()) != checksum) damage.fail("another checksum than ", checksum);
    return manifest_of(json, is_share, damage);
  } catch (const Json::exception& error) {
    damage.fail("no such members (", error.what(), ")");
  }
}

}  // namespace

std::string encode(const Manifest& manifest) {
  Json json = {{"format", kFormat},
               {"version", version_of(manifest)},
               {"step", manifest.step},
               {"cohort", manifest.cohort},
               {"strategy", manifest.strategy},
               {"time", manifest.time},
               {"tensors", Json::object()},
               {"variables", Json::array()},
               {"states", Json::array()},
               {"generators", manifest.generators},
               {"positions", manifest.positions},
               {"values", Json::object()}};
  for (const auto& [name, tensor] : manifest.tensors) json["tensors"][name] = json_of(tensor);
  for (const VariableEntry& variable : manifest.variables)
    json["variables"].push_back(json_of(variable));
  for (const StateEntry& state : manifest.states) json["states"].push_back(json_of(state));
  for (const auto& [name, text] : manifest.values) json["values"][name] = Json::parse(text);
  try {
    json["crc32c"] = crc32c(json.dump());
    return json.dump(1) + "\n";
  } catch (const Json::type_error&) {
    internal::throw_error(ErrorCode::invalid_argument,
                          "[checkpoint.write] expected names of valid UTF-8, got others");
  }
}

Manifest parse_manifest(std::string_view text, const std::string& path) {
  return parse(text, path, /*is_share=*/false);
}

Manifest parse_share(std::string_view text, const std::string& writer) {
  return parse(text, writer, /*is_share=*/true);
}

}  // namespace cohort::checkpoint
