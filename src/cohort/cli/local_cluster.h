// SPDX-License-Identifier: Apache-2.0
// The tasks of a cluster on this host, with a free loopback port and a TF_CONFIG for each.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/rpc/reserved_port.h"

namespace cohort::cli {

// Chooses free ports, and reserves them as long as the object exists (rpc::ReservedPort). A program
// that asks for one of these ports by its number can still take it before the task listens.
// Thread-compatible.
class LocalCluster {
 public:
  // Without parameter servers there is no chief: each worker runs the program.
  LocalCluster(int workers, int ps);

  static TaskId chief() { return {"chief", 0}; }
  bool has_chief() const { return servers_.front().job == "ps"; }
  // The chief, or worker:0 if there is none.
  TaskId acting_chief() const { return has_chief() ? chief() : servers_.front(); }
  // All tasks; the chief is the last one.
  std::vector<TaskId> tasks() const;
  // All tasks but the chief. The parameter servers come before the workers, which connect to them.
  const std::vector<TaskId>& servers() const { return servers_; }
  std::string tf_config(const TaskId& task) const;
  const std::string& address(const TaskId& task) const;
  // Whether some program listens at the task's address.
  bool is_taken(const TaskId& task) const;

 private:
  std::vector<TaskId> servers_;
  ClusterSpec spec_;
  std::map<std::string, rpc::ReservedPort> ports_;
};

}  // namespace cohort::cli
