// SPDX-License-Identifier: Apache-2.0
#include "cohort/estimator/cluster_tasks.h"

#include <vector>

#include "cohort/core/error.h"

namespace cohort::estimator {

std::int64_t tasks_of_job(const ClusterSpec& cluster, const std::string& job) {
  const auto found = cluster.tasks().find(job);
  return found == cluster.tasks().end() ? 0 : static_cast<std::int64_t>(found->second.size());
}

void check_has_task(const ClusterSpec& cluster, const ClusterResolver& resolver) {
  const auto check = [&](const char* key, bool is_set) {
    COHORT_CHECK(is_set, ErrorCode::invalid_argument,
                 "[estimator.run_config] expected TF_CONFIG key task.", key, " beside the cluster ",
                 cluster.to_string(),
                 ", got none; set \"task\": {\"type\": \"worker\", \"index\": 0}");
  };
  check("type", !resolver.task_type().value_or("").empty());
  check("index", resolver.task_id().has_value());
}

void check_one_chief(const ClusterSpec& cluster, const std::string& chief) {
  COHORT_CHECK(
      chief == "chief" || tasks_of_job(cluster, "chief") == 0, ErrorCode::invalid_argument,
      "[estimator.run_config] expected either a chief or, by its older name, a master, got "
      "both in the cluster ",
      cluster.to_string(), "; remove the master");
  const std::int64_t count = tasks_of_job(cluster, chief);
  COHORT_CHECK(count == 1, ErrorCode::invalid_argument,
               "[estimator.run_config] expected a cluster with exactly one '", chief,
               "' task, since no strategy coordinates the tasks, got ", count, " in ",
               cluster.to_string(), "; make one worker the chief, or set train_distribute");
}

void check_in_cluster(const ClusterSpec& cluster, const TaskId& task) {
  COHORT_CHECK(task.index >= 0 && cluster.has_task(task.job, task.index),
               ErrorCode::invalid_argument,
               "[estimator.run_config] expected a task of the cluster ", cluster.to_string(),
               " in TF_CONFIG key task, got ", task, "; correct its type or index");
}

std::int64_t global_id_of(const ClusterSpec& cluster, const TaskId& task,
                          const std::string& chief) {
  std::vector<std::string> jobs = {chief};
  for (const std::string& job : cluster.jobs())  // sorted
    if (job != chief && job != "ps") jobs.push_back(job);
  jobs.emplace_back("ps");
  std::int64_t first = 0;
  for (const std::string& job : jobs) {
    if (job == task.job) return first + task.index;
    first += tasks_of_job(cluster, job);
  }
  COHORT_ASSERT(false);
  return 0;
}

}  // namespace cohort::estimator
