// SPDX-License-Identifier: Apache-2.0
// Where a program learns of its cluster and of its own place in it
// (tf.distribute.cluster_resolver).
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

// Which task a question is about; what is absent is the resolver's own.
struct TaskQuery {
  std::optional<std::string> task_type = {};
  std::optional<std::int64_t> task_id = {};
  std::optional<std::string> rpc_layer = {};
};

// The devices that a runtime sees, as "/job:worker/task:0/device:GPU:1" or "/device:GPU:1".
using DeviceLister = std::function<std::vector<std::string>()>;

// Thread-compatible: queries may run at the same time, setters of subclasses may not beside them.
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

  // invalid_argument for what the queries above, which answer as the original's do, pass over:
  // asked before anything is served or connected.
  virtual void validate() const {}

  // The own task, when type and index are known; a negative index is invalid_argument.
  std::optional<TaskId> task() const;
  // This process only serves: it should run Server(resolver).join() and nothing else. Validates.
  bool is_server() const;
};

namespace internal {
// "layer://address", or the address where there is no layer (tf's format_master_url).
std::string master_url(const std::string& address, const std::optional<std::string>& rpc_layer);
// The devices of `query`'s task among `devices`, by type; of all tasks unless type and index are
// given.
std::map<std::string, int> count_accelerators(const std::vector<std::string>& devices,
                                              const TaskQuery& query);
// The GPUs of this process.
std::vector<std::string> local_devices();
}  // namespace internal

}  // namespace cohort
