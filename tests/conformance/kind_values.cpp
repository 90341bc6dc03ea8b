// SPDX-License-Identifier: Apache-2.0
// Small values: optionals and contexts.
#include "cohort/core/error.h"
#include "cohort/data/input_context.h"
#include "cohort/data/optional.h"
#include "tests/conformance/kinds.h"
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

}  // namespace

Json run_optional(const Json& test_case) {
  const Optional optional = test_case.contains("empty")
                                ? Optional::empty(spec_of(test_case["empty"]))
                                : Optional::from_value(nest_of(member(test_case, "value")));
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

}  // namespace cohort::conformance
