// SPDX-License-Identifier: Apache-2.0
// Steps of parameter servers of version 1, none of which needs a server.
#include <ATen/ops/ones.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/core/device.h"
#include "cohort/strategy/strategy_extended.h"
#include "cohort/v1/parameter_server_strategy.h"
#include "cohort/v1/round_robin.h"
#include "cohort/v1/task_role.h"
#include "tests/conformance/strategy_steps.h"

namespace cohort::conformance::strategy {
namespace {

SimpleResolver v1_resolver(const Step& step) {
  const auto jobs =
      member(step.json, "cluster").get<std::map<std::string, std::vector<std::string>>>();
  SimpleResolver::Options options;
  if (step.has("type")) options.task_type = step.text("type");
  if (step.has("index")) options.task_id = step.json["index"].get<std::int64_t>();
  return {ClusterSpec(jobs), options};
}

// "worker:0/CPU:0" for "/job:worker/task:0/CPU:0".
std::string v1_device(const std::string& name) {
  const Device device = Device::parse(name);
  const std::string own = device.type + ":" + std::to_string(device.index);
  return device.is_local() ? own : device.job + ":" + std::to_string(device.task) + "/" + own;
}

Json v1_devices(const std::vector<std::string>& names) {
  Json devices = Json::array();
  for (const std::string& name : names) devices.push_back(v1_device(name));
  return devices;
}

Value v1_construct(const Step& step) {
  const v1::ParameterServerStrategy strategy(v1_resolver(step));
  return {};
}

Json placed(const std::vector<rpc::Slice>& slices) {
  Json devices = Json::array();
  for (const rpc::Slice& slice : slices)
    devices.push_back("ps:" + std::to_string(slice.server) + "/CPU:0");
  return devices.size() == 1 ? devices.front() : devices;
}

// Device scopes do not move variables, and the library has none; an operator runs where the scope
// of tf says.
Value v1_place(const Step& step) {
  const auto role = detail::v1::TaskRole::of(v1_resolver(step));
  std::int64_t partitions = 1;
  detail::v1::RoundRobin servers(role.num_servers(), [&](const TensorSpec& spec) {
    std::vector<std::int64_t> shards(spec.sizes->size(), 1);
    shards.front() = partitions;
    return shards;
  });
  std::map<std::string, std::vector<rpc::Slice>> slices;
  Json result = Json::object();
  for (const Json& each : member(step.json, "vars")) {
    const auto name = member(each, "name").get<std::string>();
    if (member_or(each, "op", false)) {
      result[name] = v1_device(role.device_in_scope(member_or<std::string>(each, "device", "")));
      continue;
    }
    partitions = member_or<std::int64_t>(each, "partitions", 1);
    const auto sizes = member_or(each, "shape", std::vector<std::int64_t>());
    const auto beside = member_or<std::string>(each, "colocate_with", "");
    slices[name] = beside.empty() ? servers.next(name, {at::kFloat, {sizes}})
                                  : detail::v1::RoundRobin::beside(slices.at(beside));
    result[name] = placed(slices[name]);
  }
  return Value::of_json(result);
}

Value v1_props(const Step& step) {
  v1::ParameterServerStrategy strategy(v1_resolver(step));
  const StrategyExtended extended = strategy.extended();
  const v1::SessionSettings session = strategy.session_settings();
  return Value::of_json({{"num_replicas_in_sync", strategy.num_replicas_in_sync()},
                         {"between_graph", extended.between_graph()},
                         {"should_init", extended.should_init()},
                         {"should_checkpoint", extended.should_checkpoint()},
                         {"should_save_summary", extended.should_save_summary()},
                         {"device_filters", session.device_filters},
                         {"isolate_session_state", session.isolates_session_state},
                         {"worker_devices", v1_devices(strategy.worker_devices())},
                         {"parameter_devices", v1_devices(strategy.parameter_devices())}});
}

Value v1_reduce_to(const Step& step) {
  v1::ParameterServerStrategy strategy(v1_resolver(step));
  const StrategyScope scope = strategy.scope();
  strategy.extended().reduce_to("sum", PerReplica<at::Tensor>::bare(at::ones({})), step.text("to"));
  return {};
}

}  // namespace

const StepTable& v1_steps() {
  static const StepTable table = {
      {"v1_construct", {v1_construct, {"cluster", "type", "index"}}},
      {"v1_place", {v1_place, {"cluster", "type", "index", "vars"}}},
      {"v1_props", {v1_props, {"cluster", "type", "index"}}},
      {"v1_reduce_to", {v1_reduce_to, {"cluster", "type", "index", "to"}}},
  };
  return table;
}

}  // namespace cohort::conformance::strategy
