// SPDX-License-Identifier: Apache-2.0
// A cluster that the program provides (tf.distribute.cluster_resolver.SimpleClusterResolver).
#pragma once

#include "cohort/cluster/cluster_resolver.h"

namespace cohort {

// Thread-compatible.
class COHORT_API SimpleResolver final : public ClusterResolver {
 public:
  struct Options {
    std::string master = {};
    std::optional<std::string> task_type = {};
    std::optional<std::int64_t> task_id = {};
    std::optional<std::string> environment = {};
    std::map<std::string, int> num_accelerators = {};
    std::optional<std::string> rpc_layer = {};
  };

  explicit SimpleResolver(ClusterSpec spec);
  SimpleResolver(ClusterSpec spec, Options options);

  ClusterSpec cluster_spec() const override { return spec_; }
  std::optional<std::string> task_type() const override { return options_.task_type; }
  std::optional<std::int64_t> task_id() const override { return options_.task_id; }
  std::optional<std::string> rpc_layer() const override { return options_.rpc_layer; }
  std::optional<std::string> environment() const override { return options_.environment; }
  // The task's address when type and index are both given, else the master of the options.
  std::string master(const TaskQuery& query = {}) const override;
  // The counts of the options, for every task.
  std::map<std::string, int> num_accelerators(const TaskQuery& query = {}) const override;

  void set_task_type(std::optional<std::string> type) { options_.task_type = std::move(type); }
  void set_task_id(std::optional<std::int64_t> id) { options_.task_id = id; }
  void set_rpc_layer(std::optional<std::string> layer) { options_.rpc_layer = std::move(layer); }

 private:
  ClusterSpec spec_;
  Options options_;
};

}  // namespace cohort
