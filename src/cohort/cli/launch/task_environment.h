// SPDX-License-Identifier: Apache-2.0
// The environment variables of a launched task.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cohort/cli/launch.h"
#include "cohort/cli/local_cluster.h"

namespace cohort::cli {

ClusterShape shape_of(const LaunchOptions& options);
// The program that the task runs, with its arguments.
const std::vector<std::string>& command_of(const LaunchOptions& options, const TaskId& task);

// TF_CONFIG, COHORT_DATA_DIRS, for all but the chief OMP_NUM_THREADS if the user has not set it,
// and for the acting chief also LaunchOptions::chief_environment.
std::vector<std::pair<std::string, std::string>> environment_of(const LaunchOptions& options,
                                                                const LocalCluster& cluster,
                                                                const TaskId& task);

// The command line that starts the task in a shell, with these variables.
std::string shell_line(const LaunchOptions& options, const LocalCluster& cluster,
                       const TaskId& task);

}  // namespace cohort::cli
