// SPDX-License-Identifier: Apache-2.0
#include "cohort/cluster/worker_roles.h"

#include "cohort/cluster/validation.h"
#include "cohort/core/error.h"

namespace cohort::cluster {
namespace {

[[noreturn]] void refuse_job(const std::string& function, const std::string& type) {
  internal::throw_error(ErrorCode::invalid_argument, "[cluster.", function,
                        "] expected a task of chief, worker or evaluator, got one of ", type,
                        ", which does not train");
}

}  // namespace

std::int64_t num_tasks_of(const ClusterSpec& spec, const std::string& job) {
  return spec.tasks().contains(job) ? spec.num_tasks(job) : 0;
}

std::int64_t id_in_cluster(const ClusterSpec& spec, const std::string& type, std::int64_t index) {
  validate_cluster(spec, type, index);
  if (type == "chief") return 0;
  if (type == "worker") return num_tasks_of(spec, "chief") + index;
  if (type != "evaluator") refuse_job("id_in_cluster", type);
  return index;
}

std::int64_t worker_count(const ClusterSpec& spec, const std::string& type) {
  validate_cluster(spec, type, 0);
  // TensorFlow fails for an evaluator that the cluster does not list, although none has to be.
  if (type == "evaluator") return 1;
  if (type != "chief" && type != "worker") refuse_job("worker_count", type);
  return num_tasks_of(spec, "chief") + num_tasks_of(spec, "worker");
}

bool is_chief(const ClusterSpec& spec, const std::string& type, std::int64_t index) {
  validate_cluster(spec, type, index);
  if (type == "chief" || type == "evaluator") return true;
  return type == "worker" && index == 0 && num_tasks_of(spec, "chief") == 0;
}

std::optional<TaskId> collective_leader(const ClusterSpec& spec, const std::string& type,
                                        std::int64_t index) {
  if (!spec) return std::nullopt;
  validate_cluster(spec, type, index);
  if (type == "evaluator") return std::nullopt;
  if (num_tasks_of(spec, "chief") > 0) return TaskId{"chief", 0};
  COHORT_CHECK(num_tasks_of(spec, "worker") > 0, ErrorCode::invalid_argument,
               "[cluster.collective_leader] expected a chief or a worker in the cluster, got ",
               spec.to_string(), "; add \"worker\": [\"host:port\"] to cluster");
  return TaskId{"worker", spec.task_indices("worker").front()};
}

}  // namespace cohort::cluster
