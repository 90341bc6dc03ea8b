// SPDX-License-Identifier: Apache-2.0
#include "cohort/cli/local_cluster.h"

#include <nlohmann/json.hpp>

namespace cohort::cli {
LocalCluster::LocalCluster(const ClusterShape& shape) : shape_(shape) {
  for (int i = 0; i < shape.ps; ++i) servers_.push_back({"ps", i});
  for (int i = 0; i < shape.workers; ++i) servers_.push_back({"worker", i});
  if (shape.has_evaluator) servers_.push_back({"evaluator", 0});
  const auto reserve = [this](const TaskId& task) {
    return "127.0.0.1:" + std::to_string(ports_[task.to_string()].number());
  };
  std::map<std::string, std::vector<std::string>> jobs;
  for (const TaskId& task : tasks()) jobs[task.job].push_back(reserve(task));
  spec_ = ClusterSpec(jobs);
}

std::vector<TaskId> LocalCluster::tasks() const {
  std::vector<TaskId> all = servers_;
  if (has_chief() || shape_.has_v1_chief) all.push_back(chief());
  return all;
}

std::string LocalCluster::tf_config(const TaskId& task) const {
  const nlohmann::json config = {{"cluster", nlohmann::json::parse(spec_.to_json())},
                                 {"task", {{"type", task.job}, {"index", task.index}}}};
  return config.dump();
}

const std::string& LocalCluster::address(const TaskId& task) const {
  return spec_.task_address(task.job, task.index);
}

bool LocalCluster::is_taken(const TaskId& task) const {
  return ports_.at(task.to_string()).has_listener();
}

}  // namespace cohort::cli
