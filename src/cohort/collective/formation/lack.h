// SPDX-License-Identifier: Apache-2.0
// The error that reports why a process cannot form a group yet.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "cohort/collective/formation/message.h"
#include "cohort/collective/process_groups.h"
#include "cohort/core/error.h"

namespace cohort::collective::formation {

// "worker:1 (host:port)"
std::string name_of(const WorkerTask& task);
// The same of these, with commas.
std::string names_of(const std::vector<WorkerTask>& tasks, const std::vector<int>& ids);
// `came`: those that have taken part at some time. The others of the missing are named.
Error error_of(const Lack& lack, const std::vector<WorkerTask>& tasks, const std::set<int>& came);

}  // namespace cohort::collective::formation
