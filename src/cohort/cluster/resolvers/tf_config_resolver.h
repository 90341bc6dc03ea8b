// SPDX-License-Identifier: Apache-2.0
// The cluster from the environment variable TF_CONFIG
// (tf.distribute.cluster_resolver.TFConfigClusterResolver):
//
//  {"cluster": {"chief": ["h0:2222"], "worker": ["h1:2222", "h2:2222"], "ps": ["h3:2222"]},
//   "task": {"type": "worker", "index": 1}}
//
// Optional keys: "rpc_layer", "session_master". Others are ignored. An unset variable is {}.
// An index is converted by the rules of Python's int(), as in tf: "1" and 1.0 are 1, and so are
// true and 1.5, with a warning that names the value.
#pragma once

#include "cohort/cluster/cluster_resolver.h"

namespace cohort {

// Reads the variable again at every query, so errors come from the queries: invalid_argument that
// names the key, the value and the remedy. Thread-compatible, as the environment is.
class COHORT_API TfConfigResolver final : public ClusterResolver {
 public:
  // A value that is given here, or to a setter, overrides TF_CONFIG.
  struct Options {
    std::optional<std::string> task_type = {};
    std::optional<std::int64_t> task_id = {};
    std::optional<std::string> rpc_layer = {};
    std::optional<std::string> environment = {};
    DeviceLister devices = {};  // empty: the GPUs of this process
  };

  TfConfigResolver();
  explicit TfConfigResolver(Options options);

  ClusterSpec cluster_spec() const override;
  std::optional<std::string> task_type() const override;
  std::optional<std::int64_t> task_id() const override;
  std::optional<std::string> rpc_layer() const override;
  std::optional<std::string> environment() const override { return options_.environment; }
  // "session_master" where it is set; else empty for a cluster of at most one task; else the task's
  // address.
  std::string master(const TaskQuery& query = {}) const override;
  std::map<std::string, int> num_accelerators(const TaskQuery& query = {}) const override;
  // Checks that TF_CONFIG and its "task" are objects, and that a task with an index has a type:
  // without one, the process would count as the coordinator.
  void validate() const override;

  void set_task_type(std::optional<std::string> type) { options_.task_type = std::move(type); }
  void set_task_id(std::optional<std::int64_t> id) { options_.task_id = id; }
  void set_rpc_layer(std::optional<std::string> layer) { options_.rpc_layer = std::move(layer); }

 private:
  Options options_;
};

}  // namespace cohort
