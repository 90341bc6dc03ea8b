// SPDX-License-Identifier: Apache-2.0
// What a launched task finds in its environment.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cohort/cli/launch.h"
#include "cohort/cli/local_cluster.h"

namespace cohort::cli {

// TF_CONFIG, COHORT_DATA_DIRS, and for servers OMP_NUM_THREADS where the user has not set it.
std::vector<std::pair<std::string, std::string>> environment_of(const LaunchOptions& options,
                                                                const LocalCluster& cluster,
                                                                const TaskId& task);

// The same as a line for a shell.
std::string shell_line(const LaunchOptions& options, const LocalCluster& cluster,
                       const TaskId& task);

}  // namespace cohort::cli
