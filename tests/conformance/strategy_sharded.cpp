// SPDX-License-Identifier: Apache-2.0
// Steps of variables whose rows are divided into shards.
#include <ATen/ops/arange.h>

#include <algorithm>
#include <map>
#include <optional>

#include "cohort/core/error.h"
#include "cohort/variable/variable.h"
#include "tests/conformance/strategy_steps.h"
#include "tests/conformance/strategy_tensors.h"

namespace cohort::conformance::strategy {
namespace {

// --- creation and queries -----------------------------------------------------------------------

// TensorFlow refuses these by their types; C++ can express a list of no variables.
void refuse_other_types(const Step& step) {
  const Value raw = step.value("raw");
  if (raw.kind != Value::Kind::list) refuse_type("shards that are no list");
  if (!raw.items.empty()) refuse_type("shards that are no variables");
}

Value make_sharded(const Step& step) {
  const std::string name = step.text_or("name", "ShardedVariable");
  if (step.json.contains("raw")) refuse_other_types(step);
  std::vector<Variable> shards;
  for (const Json& init : member_or(step.json, "shards", Json::array())) {
    const at::Tensor value = tensor_from(step.test, evaluate(step.test, step.frame, init));
    const std::string part = name + "/part_" + std::to_string(shards.size());
    shards.push_back(step.test.create_variable(part, value, {}));
  }
  std::optional<ShardedVariable> other;
  if (step.has("preset_slice_info"))
    other.emplace("other", std::vector{shards.at(step.json["preset_slice_info"])});
  return step.test.value_of(ShardedVariable(name, shards).variable());
}

ShardedVariable sharded(const Step& step) { return ShardedVariable(step.variable()); }

Value offsets(const Step& step) {
  const ShardedVariable variable = sharded(step);
  Json all = Json::array();
  for (const std::int64_t first : variable.offsets()) {
    std::vector<std::int64_t> offset(variable.variable().spec().sizes->size(), 0);
    offset.front() = first;
    all.push_back(offset);
  }
  return Value::of_json(std::move(all));
}

// read() has no dtype to convert to.
Value to_dense(const Step& step) {
  const Variable variable = step.variable();
  if (step.has("dtype") && scalar_type_of(step.text("dtype")) != variable.spec().dtype)
    refuse_type("a conversion to another dtype");
  return Value::of(variable.read());
}

Value binary(const Step& step) {
  const Json operation = {{step.text("fn"), {step.json["a"], step.json["b"]}}};
  return evaluate(step.test, step.frame, operation);
}

// --- indexing -----------------------------------------------------------------------------------

struct Slice {
  std::optional<std::int64_t> start;
  std::optional<std::int64_t> stop;
  std::int64_t step = 1;
};

Slice slice_of(const Json& bounds) {
  const auto bound = [&](std::size_t i) -> std::optional<std::int64_t> {
    if (bounds.at(i).is_null()) return std::nullopt;
    if (!bounds[i].is_number_integer()) refuse_type("a tensor as a bound of a slice");
    return bounds[i].get<std::int64_t>();
  };
  return {bound(0), bound(1), bound(2).value_or(1)};
}

// The library has slices of rows alone, so rows of the transposed tensor are sliced.
at::Tensor sliced(const at::Tensor& tensor, std::int64_t axis, const Slice& slice) {
  const Variable rows = local_variable("rows", tensor.transpose(0, axis).contiguous(), false);
  return ShardedVariable(rows).slice(slice.start, slice.stop, slice.step).transpose(0, axis);
}

bool takes_axis(const Json& item) { return item.contains("i") || item.contains("sl"); }

// Indexes `value` by items from `next` on, beginning at this axis.
at::Tensor indexed(const Step& step, at::Tensor value, const Json& spec, std::size_t next,
                   std::int64_t axis) {
  for (; next < spec.size(); ++next) {
    const Json& item = spec[next];
    if (item.contains("i")) {
      value = value.select(axis, item["i"].get<std::int64_t>());
    } else if (item.contains("sl")) {
      value = sliced(value, axis++, slice_of(item["sl"]));
    } else if (item.contains("newaxis")) {
      value = value.unsqueeze(axis++);
    } else if (item.contains("ellipsis")) {
      const auto rest = spec.begin() + static_cast<std::ptrdiff_t>(next) + 1;
      axis = value.dim() - std::count_if(rest, spec.end(), takes_axis);
    } else if (item.contains("mask") && spec.size() == 1) {
      value = value.masked_select(
          tensor_from(step.test, evaluate(step.test, step.frame, item["mask"])));
    } else {
      refuse_type("an index " + item.dump());
    }
  }
  return value;
}

Value index(const Step& step) {
  const Json& spec = member(step.json, "spec");
  const ShardedVariable variable = sharded(step);
  const Json& first = spec.at(0);
  if (first.contains("i"))
    return Value::of(indexed(step, variable[first["i"].get<std::int64_t>()], spec, 1, 0));
  if (first.contains("sl")) {
    const Slice rows = slice_of(first["sl"]);
    const at::Tensor read = variable.slice(rows.start, rows.stop, rows.step);
    return Value::of(indexed(step, read, spec, 1, 1));
  }
  return Value::of(indexed(step, variable.variable().read(), spec, 0, 0));
}

// --- rows ---------------------------------------------------------------------------------------

at::Tensor tensor_in(const Step& step, const char* key) {
  return tensor_from(step.test, step.value(key));
}

std::optional<double> max_norm_in(const Step& step) {
  if (!step.has("max_norm")) return std::nullopt;
  return tensor_in(step, "max_norm").item<double>();
}

Value sparse_read(const Step& step) {
  return Value::of(sharded(step).sparse_read(tensor_in(step, "indices")));
}

Value look_up(const Step& step) {
  return Value::of(embedding_lookup(step.variable(), tensor_in(step, "ids"), max_norm_in(step)));
}

SparseLookupOptions lookup_options_in(const Step& step) {
  static const std::map<std::string, EmbeddingCombiner> combiners = {
      {"sum", EmbeddingCombiner::sum},
      {"mean", EmbeddingCombiner::mean},
      {"sqrtn", EmbeddingCombiner::sqrtn}};
  const auto combiner = combiners.find(step.text_or("combiner", "mean"));
  if (combiner == combiners.end()) refuse_type("the combiner '" + step.text("combiner") + "'");
  SparseLookupOptions options{.combiner = combiner->second, .max_norm = max_norm_in(step)};
  if (step.has("weights")) options.weights = tensor_in(step, "weights");
  if (step.has("default_id")) options.default_id = step.json["default_id"].get<std::int64_t>();
  return options;
}

Value look_up_sparse(const Step& step) {
  return Value::of(
      embedding_lookup_sparse(step.variable(), tensor_in(step, "ids"), lookup_options_in(step)));
}

Value look_up_safely(const Step& step) {
  return Value::of(safe_embedding_lookup_sparse(step.variable(), tensor_in(step, "ids"),
                                                lookup_options_in(step)));
}

}  // namespace

const StepTable& sharded_steps() {
  static const std::vector<std::string_view> lookup = {"var",      "ids",      "weights",
                                                       "combiner", "max_norm", "default_id"};
  static const StepTable table = {
      {"sharded", {make_sharded, {"shards", "raw", "name", "preset_slice_info"}}},
      {"offsets", {offsets, {"var"}}},
      {"to_dense", {to_dense, {"var", "dtype"}}},
      {"binary", {binary, {"fn", "a", "b"}}},
      {"index", {index, {"var", "spec"}}},
      {"sparse_read", {sparse_read, {"var", "indices"}}},
      {"embedding_lookup", {look_up, {"var", "ids", "max_norm"}}},
      {"embedding_lookup_sparse", {look_up_sparse, lookup}},
      {"safe_embedding_lookup_sparse", {look_up_safely, lookup}},
  };
  return table;
}

}  // namespace cohort::conformance::strategy
