// SPDX-License-Identifier: Apache-2.0
// Steps of strategies that keep variables on parameter servers.
#include "cohort/cluster/cluster_resolver.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "tests/conformance/strategy_steps.h"

namespace cohort::conformance::strategy {
namespace {

// The constructor alone, which needs no server.
Value construct(const Step& step) {
  const auto jobs =
      member(step.json, "cluster").get<std::map<std::string, std::vector<std::string>>>();
  SimpleResolver::Options options;
  if (step.has("type")) options.task_type = step.text("type");
  if (step.has("index")) options.task_id = step.json["index"].get<std::int64_t>();
  const SimpleResolver resolver(ClusterSpec(jobs), options);
  const ParameterServerStrategy strategy(resolver);
  return {};
}

}  // namespace

const StepTable& server_steps() {
  static const StepTable table = {
      {"ps_strategy", {construct, {"cluster", "type", "index"}}},
  };
  return table;
}

}  // namespace cohort::conformance::strategy
