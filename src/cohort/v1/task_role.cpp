// SPDX-License-Identifier: Apache-2.0
#include "cohort/v1/task_role.h"

#include <optional>

#include "cohort/cluster/validation.h"
#include "cohort/cluster/worker_roles.h"
#include "cohort/core/device.h"
#include "cohort/core/error.h"

namespace cohort::detail::v1 {

TaskRole TaskRole::of(const ClusterResolver& resolver) {
  resolver.validate();
  TaskRole role{.spec = resolver.cluster_spec()};
  if (!role.spec) return role;
  const std::optional<std::string> type = resolver.task_type();
  const std::optional<std::int64_t> index = resolver.task_id();
  COHORT_CHECK(type && index, ErrorCode::invalid_argument,
               "[v1.construct] expected the type and the index of this task in the cluster ",
               role.spec.to_string(), ", got no ", type ? "index" : "type",
               "; set task.type and task.index in TF_CONFIG, or the resolver's task_type and "
               "task_id");
  validate_cluster(role.spec, type, index);
  COHORT_CHECK(role.num_servers() > 0, ErrorCode::invalid_argument,
               "[v1.construct] expected at least one ps in the cluster, got ",
               role.spec.to_string(), "; add \"ps\": [\"host:port\"] to cluster in TF_CONFIG");
  COHORT_CHECK(*type != "ps", ErrorCode::invalid_argument,
               "[v1.construct] expected a chief, a worker or an evaluator, got ps:", *index,
               ", which runs no training program; run `cohort server` there, or "
               "Server(resolver).join()");
  role.type = *type;
  role.index = *index;
  return role;
}

bool TaskRole::is_chief() const { return is_alone() || cluster::is_chief(spec, type, index); }

std::string TaskRole::name() const {
  return is_alone() ? "this process" : type + ":" + std::to_string(index);
}

std::string TaskRole::device_prefix() const {
  return is_alone() ? std::string() : "/job:" + type + "/task:" + std::to_string(index);
}

std::string TaskRole::device_in_scope(const std::string& scope) const {
  const Device device = scope.empty() ? Device() : Device::parse(scope);
  return (device.is_local() ? device_prefix() + "/" : std::string()) + device.to_string();
}

std::string TaskRole::chief() const {
  return cluster::num_tasks_of(spec, "chief") > 0 ? "chief:0" : "worker:0";
}

std::uint64_t TaskRole::origin() const {
  return type == "worker" ? static_cast<std::uint64_t>(index) + 1 : 0;
}

std::int64_t TaskRole::num_servers() const { return cluster::num_tasks_of(spec, "ps"); }

int TaskRole::num_workers() const {
  return has_servers() ? static_cast<int>(cluster::worker_count(spec, type)) : 1;
}

int TaskRole::worker() const {
  return has_servers() ? static_cast<int>(cluster::id_in_cluster(spec, type, index)) : 0;
}

}  // namespace cohort::detail::v1
