// SPDX-License-Identifier: Apache-2.0
// The tasks of a cluster on this host, with a free loopback port and a TF_CONFIG for each.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/rpc/reserved_port.h"

namespace cohort::cli {

// Which tasks there are.
struct ClusterShape {
  int workers = 1;
  int ps = 1;  // 0: no chief, and each worker runs the program
  // Each task but ps runs the program, and the chief and the evaluator are there if wanted.
  bool is_v1 = false;
  bool has_v1_chief = false;
  bool has_evaluator = false;
};

// Chooses free ports, and reserves them as long as the object exists (rpc::ReservedPort). A program
// that asks for one of these ports by its number can still take it before the task listens.
// Thread-compatible.
class LocalCluster {
 public:
  explicit LocalCluster(const ClusterShape& shape);

  static TaskId chief() { return {"chief", 0}; }
  // Whether there is a chief for which the others work.
  bool has_chief() const { return shape_.ps > 0 && !shape_.is_v1; }
  // The chief, or worker:0 if there is none.
  TaskId acting_chief() const {
    return has_chief() || shape_.has_v1_chief ? chief() : TaskId{"worker", 0};
  }
  // All tasks; a chief is the last one.
  std::vector<TaskId> tasks() const;
  // All tasks but a chief. The parameter servers come before the workers, which connect to them.
  const std::vector<TaskId>& servers() const { return servers_; }
  std::string tf_config(const TaskId& task) const;
  const std::string& address(const TaskId& task) const;
  // Whether some program listens at the task's address.
  bool is_taken(const TaskId& task) const;

 private:
  ClusterShape shape_;
  std::vector<TaskId> servers_;
  ClusterSpec spec_;
  std::map<std::string, rpc::ReservedPort> ports_;
};

}  // namespace cohort::cli
