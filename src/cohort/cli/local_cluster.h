// SPDX-License-Identifier: Apache-2.0
// The tasks of a cluster on this host: who they are, their free loopback ports, their TF_CONFIG.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cohort/cluster/cluster_spec.h"
#include "cohort/cluster/task_id.h"
#include "cohort/rpc/reserved_port.h"

namespace cohort::cli {

// Chooses free ports and keeps them reserved while it lives (rpc::ReservedPort), so that only a
// program that names one of them can still take it before its task listens. Thread-compatible.
class LocalCluster {
 public:
  LocalCluster(int workers, int ps);

  static TaskId chief() { return {"chief", 0}; }
  // Parameter servers before workers, which connect to them.
  const std::vector<TaskId>& servers() const { return servers_; }
  std::string tf_config(const TaskId& task) const;
  const std::string& address(const TaskId& task) const;
  // Somebody listens at the task's address.
  bool is_taken(const TaskId& task) const;

 private:
  std::vector<TaskId> servers_;
  ClusterSpec spec_;
  std::map<std::string, rpc::ReservedPort> ports_;
};

}  // namespace cohort::cli
