// SPDX-License-Identifier: Apache-2.0
// Steps of partitioners.
#include "cohort/strategy/parameter_server_strategy.h"

#include <functional>

#include "tests/conformance/strategy_steps.h"
#include "tests/conformance/strategy_tensors.h"

namespace cohort::conformance::strategy {
namespace {

using Divide = std::function<std::vector<std::int64_t>(const TensorSpec&, std::int64_t axis)>;

Divide partitioner_of(const Json& given) {
  const std::string kind = member(given, "kind").get<std::string>();
  const auto number = [&](const char* option, std::int64_t missing) {
    return given.value(option, missing);
  };
  if (kind == "fixed_shards") {
    return FixedShardsPartitioner(member(given, "num_shards").get<std::int64_t>());
  }
  if (kind == "min_size") {
    MinSizePartitionerOptions options;
    options.min_shard_bytes = number("min_shard_bytes", options.min_shard_bytes);
    options.max_shards = number("max_shards", options.max_shards);
    options.bytes_per_string = number("bytes_per_string", options.bytes_per_string);
    return MinSizePartitioner(options);
  }
  if (kind == "max_size") {
    MaxSizePartitionerOptions options;
    options.max_shard_bytes = member(given, "max_shard_bytes").get<std::int64_t>();
    options.max_shards = number("max_shards", options.max_shards);
    options.bytes_per_string = number("bytes_per_string", options.bytes_per_string);
    return MaxSizePartitioner(options);
  }
  if (kind == "returns") {
    const Json& value = member(given, "value");
    const auto counts =
        value.is_null() ? std::vector<std::int64_t>() : value.get<std::vector<std::int64_t>>();
    return [counts](const TensorSpec&, std::int64_t) { return counts; };
  }
  throw CaseFault("unknown partitioner " + given.dump());
}

Value make_partitioner(const Step& step) {
  partitioner_of(member(step.json, "partitioner"));
  return {};
}

Value partition(const Step& step) {
  const TensorSpec spec{scalar_type_of(step.text("dtype")),
                        member(step.json, "shape").get<std::vector<std::int64_t>>()};
  const Divide divide = partitioner_of(member(step.json, "partitioner"));
  return Value::of_json(divide(spec, step.json.value("axis", std::int64_t{0})));
}

}  // namespace

Partitioner partitioner_in(const Json& strategy) {
  if (!strategy.contains("partitioner")) return {};
  return [divide = partitioner_of(strategy["partitioner"])](const TensorSpec& spec) {
    return divide(spec, 0);
  };
}

const StepTable& partitioner_steps() {
  static const StepTable table = {
      {"new_partitioner", {make_partitioner, {"partitioner"}}},
      {"partition", {partition, {"partitioner", "shape", "dtype", "axis"}}},
  };
  return table;
}

}  // namespace cohort::conformance::strategy
