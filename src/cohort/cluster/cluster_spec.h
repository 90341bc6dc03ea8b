// SPDX-License-Identifier: Apache-2.0
// Which tasks a cluster has, and at which addresses (tf.train.ClusterSpec).
//
//   ClusterSpec spec{{"worker", {"a:2222", "b:2222"}}, {"ps", {"c:2222"}}};
//   spec.task_address("worker", 1) == "b:2222"
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/export.h"

namespace cohort {

// A value type; equality is by content. Knows nothing of which jobs or addresses make sense:
// validation.h does. Thread-compatible.
class COHORT_API ClusterSpec {
 public:
  // Index to address; a job may have holes.
  using Tasks = std::map<std::int64_t, std::string>;

  ClusterSpec() = default;
  explicit ClusterSpec(const std::map<std::string, std::vector<std::string>>& jobs);
  // Each job once.
  ClusterSpec(std::initializer_list<std::pair<const std::string, std::vector<std::string>>> jobs);
  // Jobs whose indices are not 0..n-1. A negative index is invalid_argument.
  static ClusterSpec from_tasks(std::map<std::string, Tasks> jobs);
  // From {"worker": ["host:port", …]} or {"worker": {"0": "host:port", …}}. `where` is what errors
  // call the text.
  static ClusterSpec from_json(std::string_view text, std::string_view where = "the cluster");

  // Sorted.
  std::vector<std::string> jobs() const;
  // Has any job.
  explicit operator bool() const { return !jobs_.empty(); }
  bool has_task(const std::string& job, std::int64_t index) const;

  // Of an unknown job these are invalid_argument; the message lists the known ones.
  std::int64_t num_tasks(const std::string& job) const;
  std::vector<std::int64_t> task_indices(const std::string& job) const;
  // Up to the largest index, with nullopt where there is no task.
  std::vector<std::optional<std::string>> job_tasks(const std::string& job) const;
  // An unknown index is invalid_argument too.
  const std::string& task_address(const std::string& job, std::int64_t index) const;

  // Everything, by job and index.
  const std::map<std::string, Tasks>& tasks() const { return jobs_; }
  // tf's as_dict(): a list where the indices are 0..n-1, else an object; an empty job is {}.
  // from_json() takes it back.
  std::string to_json() const;
  std::string to_string() const { return to_json(); }

  bool operator==(const ClusterSpec&) const = default;

 private:
  const Tasks& tasks_of(const std::string& job) const;

  std::map<std::string, Tasks> jobs_;
};

}  // namespace cohort
