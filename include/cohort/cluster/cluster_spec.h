// SPDX-License-Identifier: Apache-2.0
// Which tasks a cluster has, and at which addresses (tf.train.ClusterSpec).
//
//   ClusterSpec spec{{"worker", {"a:2222", "b:2222"}}, {"ps", {"c:2222"}}};
//   spec.task_address("worker", 1);  // "b:2222"
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/export.h"

namespace cohort {

// The name of one task of a cluster: "worker:1". A value type. Orders by job, then by index.
struct COHORT_API TaskId {
  std::string job;
  std::int64_t index = 0;

  // Reads what to_string() returns. Throws invalid_argument for any other text.
  static TaskId parse(std::string_view text);
  std::string to_string() const { return job + ":" + std::to_string(index); }
  friend std::ostream& operator<<(std::ostream& out, const TaskId& id) {
    return out << id.to_string();
  }

  auto operator<=>(const TaskId&) const = default;
};

}  // namespace cohort

template <>
struct std::hash<cohort::TaskId> {
  std::size_t operator()(const cohort::TaskId& task) const noexcept {
    return std::hash<std::string>()(task.job) * 31 + std::hash<std::int64_t>()(task.index);
  }
};

namespace cohort {

// A value type; specs are equal if their content is. Accepts any job names and addresses: Server
// and ParameterServerStrategy check them. Thread-compatible.
class COHORT_API ClusterSpec {
 public:
  // Address by index; indices may be missing.
  using Tasks = std::map<std::int64_t, std::string>;

  ClusterSpec() = default;
  explicit ClusterSpec(const std::map<std::string, std::vector<std::string>>& jobs);
  // Throws invalid_argument if a job appears twice.
  ClusterSpec(std::initializer_list<std::pair<const std::string, std::vector<std::string>>> jobs);
  // For jobs whose indices are not 0..n-1. Throws invalid_argument if an index is negative or above
  // 999999.
  static ClusterSpec from_tasks(std::map<std::string, Tasks> jobs);
  // Reads {"worker": ["host:port", …]} or {"worker": {"0": "host:port", …}}. Errors name the text
  // `where`.
  static ClusterSpec from_json(std::string_view text, std::string_view where = "the cluster");

  // The names of the jobs, sorted.
  std::vector<std::string> jobs() const;
  // Whether there is any job.
  explicit operator bool() const { return !jobs_.empty(); }
  bool has_task(const std::string& job, std::int64_t index) const;

  // These throw invalid_argument for an unknown job; the message lists the known ones.
  std::int64_t num_tasks(const std::string& job) const;
  std::vector<std::int64_t> task_indices(const std::string& job) const;
  // The addresses up to the largest index; nullopt for an index without a task.
  std::vector<std::optional<std::string>> job_tasks(const std::string& job) const;
  // Also throws invalid_argument for an unknown index.
  const std::string& task_address(const std::string& job, std::int64_t index) const;

  // All addresses, by job and index.
  const std::map<std::string, Tasks>& tasks() const { return jobs_; }
  // tf's as_dict(): each job is a list if its indices are 0..n-1, else an object; an empty job is
  // {}. from_json() reads it.
  std::string to_json() const;
  std::string to_string() const { return to_json(); }
  friend std::ostream& operator<<(std::ostream& out, const ClusterSpec& spec) {
    return out << spec.to_string();
  }

  bool operator==(const ClusterSpec&) const = default;

 private:
  const Tasks& tasks_of(const std::string& job) const;

  std::map<std::string, Tasks> jobs_;
};

}  // namespace cohort
