// SPDX-License-Identifier: Apache-2.0
// Reports a program's cluster and its own task in it (tf.distribute.cluster_resolver).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/cluster/cluster_spec.h"
#include "cohort/core/export.h"

namespace cohort {

// The task that a query is about; for an absent field the resolver uses its own.
struct TaskQuery {
  std::optional<std::string> task_type = {};
  std::optional<std::int64_t> task_id = {};
  std::optional<std::string> rpc_layer = {};
};

// Lists the devices of a runtime, each as "/job:worker/task:0/device:GPU:1" or "/device:GPU:1".
using DeviceLister = std::function<std::vector<std::string>()>;

// Thread-compatible: queries may run concurrently, but not at the same time as subclasses' setters.
class COHORT_API ClusterResolver {
 public:
  virtual ~ClusterResolver() = default;
  virtual ClusterSpec cluster_spec() const = 0;
  // The own task, as far as it is known.
  virtual std::optional<std::string> task_type() const = 0;
  virtual std::optional<std::int64_t> task_id() const = 0;
  virtual std::optional<std::string> rpc_layer() const = 0;
  virtual std::optional<std::string> environment() const = 0;
  // The address to connect to, with "layer://" before it where a layer is known; may be empty.
  virtual std::string master(const TaskQuery& query = {}) const = 0;
  // Devices other than CPUs by type, as {"GPU": 2}.
  virtual std::map<std::string, int> num_accelerators(const TaskQuery& query = {}) const = 0;

  // Throws invalid_argument for mistakes that the queries above ignore because tf's do. Called
  // before this process serves or connects.
  virtual void validate() const {}

  // The own task, when type and index are known; a negative index is invalid_argument.
  std::optional<TaskId> task() const;
  // Whether this process only serves: it should run Server(resolver).join() and nothing else.
  // Calls validate(), and logs a warning where the cluster has jobs but the own type is unknown.
  bool is_server() const;
};

// A cluster that the program provides (tf.distribute.cluster_resolver.SimpleClusterResolver).
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

// The cluster from the environment variable TF_CONFIG
// (tf.distribute.cluster_resolver.TFConfigClusterResolver):
//
//  {"cluster": {"chief": ["h0:2222"], "worker": ["h1:2222", "h2:2222"], "ps": ["h3:2222"]},
//   "task": {"type": "worker", "index": 1}}
//
// Optional keys: "rpc_layer", "session_master". Others are ignored. An unset variable is {}.
// An index is converted by the rules of Python's int(), as in tf: "1" and 1.0 are 1, and so are
// true and 1.5, with a warning that names the value.
//
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
