// SPDX-License-Identifier: Apache-2.0
// Steps of cluster specs and resolvers.
#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <utility>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/cluster/resolvers.h"
#include "cohort/cluster/validation.h"
#include "cohort/cluster/worker_roles.h"
#include "cohort/core/error.h"
#include "tests/conformance/strategy_steps.h"

namespace cohort::conformance::strategy {
namespace {

struct Resolver {
  std::shared_ptr<ClusterResolver> queried;
  std::function<void(const Step&)> set;
};

// The state that the resolver steps of a case share.
struct Clusters {
  std::map<std::string, ClusterSpec> specs;
  std::map<std::string, Resolver> resolvers;
  std::vector<std::string> devices;  // those that a query finds

  const ClusterSpec& spec(const Json& name) const {
    const auto found = specs.find(name.get<std::string>());
    if (found == specs.end()) throw CaseFault("no cluster spec " + name.dump());
    return found->second;
  }
  Resolver& resolver(const Step& step) {
    const auto found = resolvers.find(step.text("of"));
    if (found == resolvers.end()) throw CaseFault("no resolver '" + step.text("of") + "'");
    return found->second;
  }
};

template <class T>
std::optional<T> optional_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return std::nullopt;
  return found->get<T>();
}

template <class T>
Json json_of_optional(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json args_of(const Step& step) { return member_or(step.json, "args", Json::object()); }

// --- cluster specs ------------------------------------------------------------------------------

ClusterSpec spec_of_index_keys(const Json& jobs) {
  std::map<std::string, ClusterSpec::Tasks> tasks;
  for (const auto& [job, addresses] : jobs.items()) {
    tasks[job];
    for (const auto& [index, address] : addresses.items()) {
      tasks[job][std::stoll(index)] = address.get<std::string>();
    }
  }
  return ClusterSpec::from_tasks(tasks);
}

Value make_spec(const Step& step) {
  Clusters& clusters = step.test.kept<Clusters>();
  const Json& from = member(step.json, "from");
  ClusterSpec spec;
  if (from.contains("json")) {
    spec = ClusterSpec::from_json(from["json"].dump());
  } else if (from.contains("intkeys")) {
    spec = spec_of_index_keys(from["intkeys"]);
  } else if (from.contains("ref")) {
    spec = clusters.spec(from["ref"]);
  } else if (from.contains("proto_of")) {
    // The serialised form of ours is the JSON text.
    spec = ClusterSpec::from_json(clusters.spec(from["proto_of"]).to_json());
  } else {
    throw CaseFault("unknown source of a cluster spec " + from.dump());
  }
  clusters.specs[step.text("as")] = spec;
  return {};
}

Json asked_of_spec(const Clusters& clusters, const ClusterSpec& spec, const std::string& query,
                   const Json& args) {
  if (query == "as_dict") return Json::parse(spec.to_json());
  if (query == "jobs") return spec.jobs();
  if (query == "bool") return bool(spec);
  if (query == "equals") return spec == clusters.spec(args.at(0));
  if (query == "num_tasks") return spec.num_tasks(args.at(0));
  if (query == "task_indices") return spec.task_indices(args.at(0));
  if (query == "task_address") {
    return spec.task_address(args.at(0), args.at(1).get<std::int64_t>());
  }
  if (query == "job_tasks") {
    Json tasks = Json::array();
    for (const auto& address : spec.job_tasks(args.at(0))) {
      tasks.push_back(json_of_optional(address));
    }
    return tasks;
  }
  throw CaseFault("unknown query '" + query + "' of a cluster spec");
}

Value ask_spec(const Step& step) {
  const Clusters& clusters = step.test.kept<Clusters>();
  return Value::of_json(asked_of_spec(clusters, clusters.spec(member(step.json, "of")),
                                      step.text("query"),
                                      member_or(step.json, "args", Json::array())));
}

// --- resolvers ----------------------------------------------------------------------------------

Value set_environment(const Step& step) {
  const Json& variables = member(step.json, "env");
  for (const auto& [name, value] : variables.items()) {
    step.test.set_environment(name, optional_of<std::string>(variables, name.c_str()));
  }
  return {};
}

template <class R>
void set_attribute(R& resolver, const Step& step) {
  const std::string attribute = step.text("attr");
  if (attribute == "task_type") {
    resolver.set_task_type(optional_of<std::string>(step.json, "value"));
  } else if (attribute == "task_id") {
    resolver.set_task_id(optional_of<std::int64_t>(step.json, "value"));
  } else if (attribute == "rpc_layer") {
    resolver.set_rpc_layer(optional_of<std::string>(step.json, "value"));
  } else {
    throw CaseFault("unknown attribute '" + attribute + "' of a resolver");
  }
}

template <class R, class O>
Resolver new_resolver(O options) {
  const auto made = std::make_shared<R>(std::move(options));
  return {made, [made](const Step& step) { set_attribute(*made, step); }};
}

Resolver simple_resolver(const Clusters& clusters, const Json& args) {
  const Json& spec = member(args, "cluster_spec");
  if (!args.value("master", Json("")).is_string()) refuse_type("a master that is no text");
  const auto made = std::make_shared<SimpleResolver>(
      spec.contains("ref") ? clusters.spec(spec["ref"]) : ClusterSpec::from_json(spec.dump()),
      SimpleResolver::Options{
          .master = args.value("master", ""),
          .task_type = optional_of<std::string>(args, "task_type"),
          .task_id = optional_of<std::int64_t>(args, "task_id"),
          .environment = optional_of<std::string>(args, "environment"),
          .num_accelerators = optional_of<std::map<std::string, int>>(args, "num_accelerators")
                                  .value_or(std::map<std::string, int>()),
          .rpc_layer = optional_of<std::string>(args, "rpc_layer")});
  return {made, [made](const Step& step) { set_attribute(*made, step); }};
}

Resolver union_resolver(const Clusters& clusters, const Json& args) {
  constexpr std::string_view kKeywords[] = {"of",        "task_type",   "task_id",
                                            "rpc_layer", "environment", "num_accelerators"};
  for (const auto& [keyword, value] : args.items()) {
    if (std::find(std::begin(kKeywords), std::end(kKeywords), keyword) == std::end(kKeywords))
      refuse_type("the argument '" + keyword + "' of a union");
  }
  std::vector<std::shared_ptr<const ClusterResolver>> parts;
  for (const Json& name : member(args, "of")) {
    const auto found = clusters.resolvers.find(name.get<std::string>());
    if (found == clusters.resolvers.end()) refuse_type("a part of a union that is no resolver");
    parts.push_back(found->second.queried);
  }
  const auto made = std::make_shared<UnionResolver>(
      std::move(parts),
      UnionResolver::Options{
          .task_type = optional_of<std::string>(args, "task_type"),
          .task_id = optional_of<std::int64_t>(args, "task_id"),
          .rpc_layer = optional_of<std::string>(args, "rpc_layer"),
          .environment = optional_of<std::string>(args, "environment"),
          .num_accelerators = optional_of<std::map<std::string, int>>(args, "num_accelerators")});
  return {made, [made](const Step& step) { set_attribute(*made, step); }};
}

Resolver slurm_resolver(const Json& args) {
  using Counts = std::map<std::string, std::int64_t>;
  SlurmResolverOptions options;
  options.jobs = args.value("jobs", Counts());
  options.port_base = args.value("port_base", options.port_base);
  options.gpus_per_node = optional_of<std::int64_t>(args, "gpus_per_node");
  options.gpus_per_task = optional_of<std::int64_t>(args, "gpus_per_task");
  if (args.value("tasks_per_node", Json()).is_object()) {
    options.tasks_by_host = args["tasks_per_node"].get<Counts>();
  } else {
    options.tasks_per_node = optional_of<std::int64_t>(args, "tasks_per_node");
  }
  options.auto_set_gpu = args.value("auto_set_gpu", true);
  if (args.contains("rpc_layer")) options.rpc_layer = optional_of<std::string>(args, "rpc_layer");
  return {std::make_shared<SlurmResolver>(options),
          [](const Step&) { throw CaseFault("a resolver of Slurm cannot be changed"); }};
}

Resolver gce_resolver(const Step& step, const Json& args) {
  GceResolverOptions options;
  options.instances = [list = member(step.json, "instances")] {
    std::vector<GceInstance> instances;
    for (const Json& each : list)
      instances.push_back({.name = each.value("name", ""),
                           .status = each.value("status", ""),
                           .address = each.value("ip", "")});
    return instances;
  };
  options.port = args.value("port", std::int64_t{8470});
  options.task_type = args.value("task_type", options.task_type);
  options.task_id = args.value("task_id", std::int64_t{0});
  if (args.contains("rpc_layer")) options.rpc_layer = optional_of<std::string>(args, "rpc_layer");
  return new_resolver<GceResolver>(options);
}

Value make_resolver(const Step& step) {
  Clusters& clusters = step.test.kept<Clusters>();
  const std::string kind = step.text("kind");
  const Json args = args_of(step);
  Resolver resolver;
  if (kind == "tf_config") {
    resolver = new_resolver<TfConfigResolver>(
        TfConfigResolver::Options{.task_type = optional_of<std::string>(args, "task_type"),
                                  .task_id = optional_of<std::int64_t>(args, "task_id"),
                                  .rpc_layer = optional_of<std::string>(args, "rpc_layer"),
                                  .environment = optional_of<std::string>(args, "environment"),
                                  .devices = [&clusters] { return clusters.devices; }});
  } else if (kind == "simple") {
    resolver = simple_resolver(clusters, args);
  } else if (kind == "union") {
    resolver = union_resolver(clusters, args);
  } else if (kind == "slurm") {
    resolver = slurm_resolver(args);
  } else if (kind == "gce") {
    resolver = gce_resolver(step, args);
  } else if (kind == "sagemaker") {
    resolver = new_resolver<SageMakerResolver>(
        SageMakerResolver::Options{.port = args.value("port", std::int64_t{2223}),
                                   .task_type = optional_of<std::string>(args, "task_type"),
                                   .task_id = optional_of<std::int64_t>(args, "task_id"),
                                   .rpc_layer = optional_of<std::string>(args, "rpc_layer"),
                                   .environment = optional_of<std::string>(args, "environment")});
  } else {
    throw CaseFault("unknown kind of resolver '" + kind + "'");
  }
  clusters.resolvers[step.text("as")] = resolver;
  return {};
}

Value ask_resolver(const Step& step) {
  Clusters& clusters = step.test.kept<Clusters>();
  clusters.devices = member_or(step.json, "devices", std::vector<std::string>());
  const ClusterResolver& resolver = *clusters.resolver(step).queried;
  const std::string query = step.text("query");
  const Json args = args_of(step);
  const TaskQuery task{.task_type = optional_of<std::string>(args, "task_type"),
                       .task_id = optional_of<std::int64_t>(args, "task_id"),
                       .rpc_layer = optional_of<std::string>(args, "rpc_layer")};
  const auto answer = [&]() -> Json {
    if (query == "cluster_spec") return Json::parse(resolver.cluster_spec().to_json());
    if (query == "task_type") return json_of_optional(resolver.task_type());
    if (query == "task_id") return json_of_optional(resolver.task_id());
    if (query == "rpc_layer") return json_of_optional(resolver.rpc_layer());
    if (query == "environment") return json_of_optional(resolver.environment());
    if (query == "master") return resolver.master(task);
    if (query == "num_accelerators") return resolver.num_accelerators(task);
    if (query == "env") {
      const char* const value = std::getenv(step.text("name").c_str());
      return value == nullptr ? Json() : Json(value);
    }
    throw CaseFault("unknown query '" + query + "' of a resolver");
  };
  return Value::of_json(answer());
}

Value set_in_resolver(const Step& step) {
  step.test.kept<Clusters>().resolver(step).set(step);
  return {};
}

Value expand_hosts(const Step& step) {
  return Value::of_json(expand_slurm_hosts(step.text("text")));
}

Value expand_tasks(const Step& step) {
  return Value::of_json(expand_slurm_tasks(step.text("text")));
}

// --- checks and roles ---------------------------------------------------------------------------

Value validate(const Step& step) {
  const auto check =
      step.json["do"] == "ps_strategy" ? &validate_parameter_server_cluster : &validate_cluster;
  check(ClusterSpec::from_json(member(step.json, "cluster").dump()),
        optional_of<std::string>(step.json, "type"), optional_of<std::int64_t>(step.json, "index"));
  return {};
}

Json leader_json(const std::optional<TaskId>& leader) {
  if (!leader) return "";
  return "/job:" + leader->job + "/replica:0/task:" + std::to_string(leader->index);
}

Value ask_role(const Step& step) {
  const auto spec = ClusterSpec::from_json(member(step.json, "cluster").dump());
  const std::string function = step.text("fn");
  const Json args = args_of(step);
  const auto type = member(args, "task_type").get<std::string>();
  const auto index = member_or<std::int64_t>(args, "task_id", 0);
  if (function == "id_in_cluster") {
    return Value::of_json(cluster::id_in_cluster(spec, type, index));
  }
  if (function == "worker_count") return Value::of_json(cluster::worker_count(spec, type));
  if (function == "is_chief") return Value::of_json(cluster::is_chief(spec, type, index));
  if (function == "collective_leader") {
    return Value::of_json(leader_json(cluster::collective_leader(spec, type, index)));
  }
  throw CaseFault("unknown function '" + function + "' of a cluster");
}

}  // namespace

const StepTable& resolver_steps() {
  static const StepTable table = {
      {"setenv", {set_environment, {"env"}}},
      {"cluster_spec", {make_spec, {"from"}, false}},
      {"csq", {ask_spec, {"of", "query", "args"}}},
      {"resolver", {make_resolver, {"kind", "args", "instances", "page"}, false}},
      {"expand_hosts", {expand_hosts, {"text"}}},
      {"expand_tasks", {expand_tasks, {"text"}}},
      {"rq", {ask_resolver, {"of", "query", "args", "devices", "name"}}},
      {"rset", {set_in_resolver, {"of", "attr", "value"}}},
      {"validate", {validate, {"cluster", "type", "index"}}},
      {"ps_strategy", {validate, {"cluster", "type", "index"}}},
      {"mwu", {ask_role, {"fn", "cluster", "args"}}},
  };
  return table;
}

}  // namespace cohort::conformance::strategy
