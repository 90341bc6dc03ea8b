// SPDX-License-Identifier: Apache-2.0
// Reports a program's cluster and its own task in it (tf.distribute.cluster_resolver).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cohort/cluster/cluster_spec.h"
#include "cohort/cluster/task_id.h"
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

namespace internal {
// "layer://address", or the address where there is no layer (tf's format_master_url).
std::string master_url(const std::string& address, const std::optional<std::string>& rpc_layer);
// Counts those of `devices` that belong to `query`'s task, by type and without CPUs; those of all
// tasks unless type and index are given.
std::map<std::string, int> count_accelerators(const std::vector<std::string>& devices,
                                              const TaskQuery& query);
// The GPUs of this process.
std::vector<std::string> local_devices();
}  // namespace internal

}  // namespace cohort
