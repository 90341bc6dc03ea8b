// SPDX-License-Identifier: Apache-2.0
// The tasks of a cluster on this host, with a free loopback port and a TF_CONFIG for each.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cohort/cluster/cluster_spec.h"
#include "cohort/rpc/detail/reserved_port.h"

namespace cohort::cli {

// Chooses free ports, and reserves them as long as the object exists (rpc::ReservedPort). A program
// that asks for one of these ports by its number can still take it before the task listens.
// Thread-compatible.
class LocalCluster {
 public:
  LocalCluster(int workers, int ps);

  static TaskId chief() { return {"chief", 0}; }
  // The parameter servers come before the workers, which connect to them.
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
