// SPDX-License-Identifier: Apache-2.0
// The output of `cohort status`: a table for people, or one line of JSON (docs/formats/status.md).
#pragma once

#include <string>
#include <vector>

#include "cohort/rpc/health_probe.h"

namespace cohort::cli {

struct TaskStatus {
  std::string task;  // "worker:1"; empty if only an address was given
  std::string address;
  rpc::ProbeResult probe;
};

struct ClusterStatus {
  std::vector<TaskStatus> tasks;
  std::vector<std::string> missing;  // tasks that cannot be asked, and what to do about it
};

// 0 if all tasks answer, otherwise 69.
int exit_code_of(const ClusterStatus& status);
// One line of JSON, without a line break at its end.
std::string json_of(const ClusterStatus& status);
// The table, in lines of at most 100 columns; each ends with a line break.
std::string table_of(const ClusterStatus& status);

}  // namespace cohort::cli
