// SPDX-License-Identifier: Apache-2.0
// What `cohort status` prints: a table for people and one line of JSON
// (docs/formats/status.md).
#pragma once

#include <string>
#include <vector>

#include "cohort/rpc/health_probe.h"

namespace cohort::cli {

struct TaskStatus {
  std::string task;  // "worker:1"; empty: unknown, an address was given alone
  std::string address;
  rpc::ProbeResult probe;
};

struct ClusterStatus {
  std::vector<TaskStatus> tasks;
  std::vector<std::string> missing;  // what the cluster lacks to be asked, and what to do about it
};

// 0 where all tasks answer, else 69.
int exit_code_of(const ClusterStatus& status);
// Without a line break.
std::string json_of(const ClusterStatus& status);
// Lines of at most 100 columns, each with its break.
std::string table_of(const ClusterStatus& status);

}  // namespace cohort::cli
