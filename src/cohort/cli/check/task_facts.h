// SPDX-License-Identifier: Apache-2.0
// Facts that a task knows about itself, which `cohort check` tells the other tasks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cohort::cli {

// A number that a limit allows; kNoLimit: any.
inline constexpr std::uint64_t kNoLimit = UINT64_MAX;

struct DataFolder {
  std::string path;
  // As this user sees it.
  bool exists = true;
  bool can_be_read = true;
  bool is_empty = false;

  bool operator==(const DataFolder&) const = default;
};

struct TaskLimits {
  std::uint64_t descriptors = kNoLimit;          // that can still be opened
  std::uint64_t threads = kNoLimit;              // of this user
  std::uint64_t locked_bytes = kNoLimit;         // of memory
  std::uint64_t shared_bytes = kNoLimit;         // that are free in /dev/shm
  std::uint64_t address_space_bytes = kNoLimit;  // of this process
  std::uint64_t file_bytes = kNoLimit;           // of one file

  bool operator==(const TaskLimits&) const = default;
};

struct TaskFacts {
  std::string task;     // "worker:1"; empty: a coordinator that is not in the cluster
  std::string process;  // another one for each process
  std::string host;     // equal for all processes of a host
  std::string cluster;  // ClusterSpec::to_json()
  std::string cohort_version;
  std::uint32_t protocol_version = 0;
  std::string torch_version;
  double clock_seconds = 0;  // since 1970, by this host's clock
  TaskLimits limits = {};
  std::vector<DataFolder> data = {};

  bool operator==(const TaskFacts&) const = default;
};

// The text in which facts are sent. Other versions may have more members.
std::string text_of_facts(const TaskFacts& facts);
// nullopt for text that no version of Cohort sends.
std::optional<TaskFacts> facts_of_text(std::string_view text);

// The facts of this process.
TaskFacts own_facts(std::string task, std::string cluster, const std::vector<std::string>& data);
double clock_seconds_now();

}  // namespace cohort::cli
