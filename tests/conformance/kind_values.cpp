// SPDX-License-Identifier: Apache-2.0
// Values without datasets: optionals, contexts, empty stand-ins, values from functions.
#include <ATen/ops/scalar_tensor.h>

#include "cohort/core/error.h"
#include "cohort/data/batch_parts.h"
#include "cohort/data/dataset_options.h"
#include "cohort/data/element.h"
#include "cohort/input/distributed_dataset.h"
#include "tests/conformance/distribution.h"
#include "tests/conformance/kinds.h"
#include "tests/conformance/named_functions.h"
#include "tests/conformance/values.h"

namespace cohort::conformance {
namespace {

template <class F>
Json result_or_error(F fn) {
  try {
    return fn();
  } catch (...) {
    return caught_error();
  }
}

Nest int64(std::int64_t value) { return at::scalar_tensor(value, at::ScalarType::Long); }

using Make = std::function<Nest(const ValueContext&)>;

Make named_value(const Json& value_fn) {
  const auto name = member(value_fn, "fn").get<std::string>();
  if (name == "const") {
    return [value = nest_of(member(value_fn, "value"))](const ValueContext&) { return value; };
  }
  if (name == "table") {
    std::vector<Nest> values;
    for (const Json& value : member(value_fn, "values")) values.push_back(nest_of(value));
    return [=](const ValueContext& context) {
      return values.at(static_cast<std::size_t>(context.replica_id_in_sync_group));
    };
  }
  if (name == "replica_id") {
    return [](const ValueContext& context) { return int64(context.replica_id_in_sync_group); };
  }
  if (name == "num_replicas") {
    return [](const ValueContext& context) { return int64(context.num_replicas_in_sync); };
  }
  if (name == "id_and_dict") {
    return [](const ValueContext& context) {
      const std::int64_t id = context.replica_id_in_sync_group;
      return Nest::tuple({int64(id), Nest::map({{"k", int64(10 * id)}})});
    };
  }
  if (name == "ragged_lists") {
    return [](const ValueContext& context) {
      const auto count = static_cast<std::size_t>(context.replica_id_in_sync_group) + 1;
      return Nest::list(Nest::Items(count, int64(1)));
    };
  }
  throw CaseFault("unknown value function '" + name + "'");
}

Json run_values_on(const Json& test_case, Strategy& strategy) {
  const Make make = named_value(member(test_case, "value_fn"));
  Json contexts = Json::array();
  Json outcome;
  const PerReplica<Nest> value =
      strategy.distribute_values_from_function([&](const ValueContext& context) {
        contexts.push_back({context.replica_id_in_sync_group, context.num_replicas_in_sync});
        return make(context);
      });
  outcome["value"] = json_of(value);
  outcome["wrapped"] = value.is_wrapped();
  outcome["contexts"] = contexts;
  if (test_case.contains("replica_fn")) {
    const auto fn = named_replica_function(test_case["replica_fn"].get<std::string>());
    outcome["steps"] = Json::array();
    for (auto left = member_or<std::int64_t>(test_case, "steps", 1); left > 0; --left) {
      outcome["steps"].push_back(json_of(strategy.run(fn, value)));
    }
  }
  if (test_case.contains("gather_axis")) {
    outcome["gathered"] = result_or_error([&] {
      return json_of(strategy.gather(value, test_case["gather_axis"].get<std::int64_t>()));
    });
  }
  return outcome;
}

// {fetch_to_device, …} in the order of the constructor's arguments.
const std::vector<std::string> kInputOptions = {
    "fetch_to_device", "replication_mode", "place_dataset_on_device", "per_replica_buffer_size"};

}  // namespace

Json error_outcome(const Json& test_case, Json error) {
  const Json& expected =
      test_case.contains("recommended") ? test_case["recommended"] : member(test_case, "expect");
  return {{expected.contains("error") ? "error" : "build_error", std::move(error)}};
}

Json run_values(const Json& test_case) {
  return with_strategy(member(test_case, "strategy"), [&](Strategy& strategy) -> Json {
    try {
      return run_values_on(test_case, strategy);
    } catch (...) {
      return error_outcome(test_case, caught_error());
    }
  });
}

Json run_dummy(const Json& test_case) {
  const ElementSpec spec = spec_of(member(test_case, "element_spec"));
  return {{"value", json_of(spec.pack(data::empty_batch_of(spec)))}};
}

Json run_optional(const Json& test_case) {
  const data::Optional optional =
      test_case.contains("empty") ? data::Optional::empty(spec_of(test_case["empty"]))
                                  : data::Optional::from_value(nest_of(member(test_case, "value")));
  Json outcome = {{"has_value", optional.has_value()}, {"spec", json_of(optional.element_spec())}};
  outcome["get_value"] = result_or_error([&] { return json_of(optional.get_value()); });
  outcome["compatible"] = Json::array();
  for (const Json& other : test_case.value("compatible_with", Json::array())) {
    outcome["compatible"].push_back(optional.is_compatible_with(spec_of(other)));
  }
  return outcome;
}

Json run_input_context(const Json& test_case) {
  const auto args = member_or(test_case, "args", std::vector<std::int64_t>());
  InputContext context;
  if (args.size() > 0) context.num_input_pipelines = args[0];
  if (args.size() > 1) context.input_pipeline_id = args[1];
  if (args.size() > 2) context.num_replicas_in_sync = args[2];
  Json outcome = {
      {"fields",
       {context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync}},
      {"text", context.to_string()}};
  if (test_case.contains("global_batch")) {
    outcome["per_replica_batch"] = result_or_error([&]() -> Json {
      return context.get_per_replica_batch_size(test_case["global_batch"].get<std::int64_t>());
    });
  }
  return outcome;
}

Json run_value_context(const Json& test_case) {
  const auto args = member_or(test_case, "args", std::vector<std::int64_t>());
  ValueContext context;
  if (args.size() > 0) context.replica_id_in_sync_group = args[0];
  if (args.size() > 1) context.num_replicas_in_sync = args[1];
  return {{"fields", {context.replica_id_in_sync_group, context.num_replicas_in_sync}},
          {"text", context.to_string()}};
}

// `args` is a list in the constructor's order, or a map by name.
Json run_input_options(const Json& test_case) {
  Json given = member_or(test_case, "input_options", Json::object());
  const Json args = member_or(test_case, "args", Json());
  for (std::size_t i = 0; args.is_array() && i < args.size(); ++i) {
    given[kInputOptions.at(i)] = args[i];
  }
  if (args.is_object()) given.update(args);
  const InputOptions options = input_options_of(given);
  const bool is_per_replica = options.replication_mode == ReplicationMode::per_replica;
  const Json fields = {{"fetch_to_device", options.fetch_to_device.value_or(true)},
                       {"replication_mode", is_per_replica ? "PER_REPLICA" : "PER_WORKER"},
                       {"place_dataset_on_device", options.place_dataset_on_device},
                       {"per_replica_buffer_size", options.per_replica_buffer_size}};
  if (member(test_case, "expect").value("fields", Json()).is_object()) return {{"fields", fields}};
  Json list = Json::array();
  for (const std::string& name : kInputOptions) list.push_back(fields[name]);
  return {{"fields", list}};
}

}  // namespace cohort::conformance
