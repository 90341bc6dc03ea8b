// SPDX-License-Identifier: Apache-2.0
#include "cohort/checkpoint_files/inspection.h"

#include <ATen/core/TensorBody.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "cohort/checkpoint_files/folder_reader.h"
#include "cohort/checkpoint_files/kept_checkpoints.h"
#include "cohort/core/atomic_file.h"
#include "cohort/core/crc32c.h"
#include "cohort/core/error.h"
#include "cohort/variable/safetensors.h"
#include "cohort/variable/safetensors_file.h"

namespace cohort::checkpoint {
namespace {

bool is_checkpoint(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path + "/manifest.json", error);
}

// "model/" if all names begin with it.
std::string common_model(const Manifest& manifest) {
  std::string model;
  for (const VariableEntry& each : manifest.variables) {
    const std::string own = each.name.substr(0, each.name.find('/') + 1);
    if (own.empty() || (!model.empty() && own != model)) return {};
    model = own;
  }
  return model;
}

std::string unequal_elements(const at::Tensor& a, const at::Tensor& b) {
  const auto count = a.ne(b).sum().item<std::int64_t>();
  return std::to_string(count) + " of " + std::to_string(a.numel()) + " elements";
}

template <class Map, class Compare>
void compare_maps(const Map& a, const Map& b, std::vector<Difference>& differences,
                  const Compare& compare) {
  for (const auto& [name, own] : a) {
    const auto other = b.find(name);
    if (other == b.end()) {
      differences.push_back({name, "only in the first"});
    } else if (std::string what = compare(name, own, other->second); !what.empty()) {
      differences.push_back({name, std::move(what)});
    }
  }
  for (const auto& [name, other] : b)
    if (!a.contains(name)) differences.push_back({name, "only in the second"});
}

// "ps-0-float32.safetensors, ps-1-float32.safetensors"
std::string files_of(const TensorEntry& tensor) {
  std::set<std::string> files{tensor.file};
  for (const PartEntry& part : tensor.parts)
    if (!part.file.empty()) files.insert(part.file);
  return fmt::format("{}", fmt::join(files, ", "));
}

}  // namespace

Summary summary_of(const std::string& path) {
  const FolderReader reader(path);
  const Manifest& manifest = reader.manifest();
  Summary summary{.path = path,
                  .step = manifest.step,
                  .time = manifest.time,
                  .strategy = manifest.strategy,
                  .cohort = manifest.cohort};
  for (const auto& [name, tensor] : manifest.tensors) {
    const auto bytes = static_cast<std::uint64_t>(tensor.spec.byte_count());
    summary.tensors.push_back({name, tensor.spec.to_string(), files_of(tensor), bytes});
    summary.bytes += bytes;
  }
  for (const StateEntry& state : manifest.states) summary.states.push_back(state.key);
  for (const auto& [name, tensor] : manifest.positions) summary.positions.push_back(name);
  for (const auto& [name, text] : manifest.values) summary.values.emplace_back(name, text);
  return summary;
}

std::vector<std::string> checkpoints_in(const std::string& path) {
  if (is_checkpoint(path)) return {path};
  std::vector<std::string> all;
  for (const std::int64_t step : steps_in(path)) all.push_back(path_of_step(path, step));
  return all;
}

std::string latest_of(const std::string& path) {
  std::error_code error;
  if (is_checkpoint(path) || !std::filesystem::is_directory(path, error)) return path;
  const std::optional<std::int64_t> step = latest_in(path);
  COHORT_CHECK(step.has_value(), ErrorCode::not_found,
               "[checkpoint.read] expected a checkpoint, or a folder with some, got '", path,
               "', which has none");
  return path_of_step(path, *step);
}

void verify(const std::string& path) { FolderReader(path).verify(); }

std::vector<Difference> difference(const std::string& a, const std::string& b) {
  FolderReader first(a);
  FolderReader second(b);
  std::vector<Difference> differences;
  const auto of_tensors = [&](const std::string& name, const TensorEntry& own,
                              const TensorEntry& other) -> std::string {
    if (own.spec != other.spec) return own.spec.to_string() + " and " + other.spec.to_string();
    const at::Tensor value = first.read(name);
    const at::Tensor others = second.read(name);
    if (value.equal(others)) return {};
    return unequal_elements(value, others);
  };
  compare_maps(first.manifest().tensors, second.manifest().tensors, differences, of_tensors);
  const auto of_values = [](const std::string&, const std::string& own,
                            const std::string& other) -> std::string {
    return own == other ? std::string() : own + " and " + other;
  };
  compare_maps(first.manifest().values, second.manifest().values, differences, of_values);
  return differences;
}

std::size_t export_values(const std::string& path, const std::string& file,
                          const std::optional<std::string>& prefix) {
  FolderReader reader(path);
  const std::string left_out = prefix ? *prefix : common_model(reader.manifest());
  std::map<std::string, std::string> saved_names;
  std::map<std::string, TensorSpec> specs;
  std::map<std::string, std::uint32_t> checksums;
  for (const VariableEntry& each : reader.manifest().variables) {
    if (each.is_table()) continue;  // it has rows by key, which a file of values cannot say
    const std::string name =
        each.name.starts_with(left_out) ? each.name.substr(left_out.size()) : each.name;
    COHORT_CHECK(saved_names.emplace(name, each.name).second, ErrorCode::invalid_argument,
                 "[checkpoint.export] expected names of their own without the prefix '", left_out,
                 "', got '", name, "' twice; leave the prefix out");
    specs.emplace(name, each.spec);
    checksums.emplace(name, crc32c(variable::bytes_of(reader.read(each.name))));
  }
  COHORT_CHECK(!specs.empty(), ErrorCode::invalid_argument,
               "[checkpoint.export] expected a checkpoint with variables, got '", path,
               "', which has none");
  const variable::NewHeader header = variable::make_header(specs, checksums);
  AtomicFile out(file, "checkpoint.export");
  variable::write_safetensors(
      out, header, [&](const std::string& name) { return reader.read(saved_names.at(name)); });
  out.commit();
  return specs.size();
}

}  // namespace cohort::checkpoint
