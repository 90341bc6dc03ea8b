// SPDX-License-Identifier: Apache-2.0
// The output of `cohort status`: a table for people, or one line of JSON (docs/formats/status.md).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cohort/collective/member_status.h"
#include "cohort/rpc/health_probe.h"

namespace cohort::cli {

struct TaskStatus {
  std::string task;  // "worker:1"; empty if only an address was given
  std::string address;
  rpc::ProbeResult probe;
  // Set for a worker of a synchronous job that answers; of `probe` it has only incarnation and
  // uptime.
  std::optional<collective::MemberStatus> member = {};
};

// The result for a worker of a synchronous job, as that of other tasks.
TaskStatus status_of(std::string task, std::string address, collective::MemberProbe probe);

struct ClusterStatus {
  std::vector<TaskStatus> tasks;
  std::vector<std::string> missing;  // tasks that cannot be asked, and what to do about it
};

// 0 if all tasks answer, otherwise 69.
int exit_code_of(const ClusterStatus& status);
// "no_answer".
const char* json_name_of(rpc::ProbeResult::State state);
// One line of JSON, without a line break at its end.
std::string json_of(const ClusterStatus& status);
// The table, in lines of at most 100 columns; each ends with a line break.
std::string table_of(const ClusterStatus& status);

}  // namespace cohort::cli
