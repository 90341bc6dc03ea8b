// SPDX-License-Identifier: Apache-2.0
// The cluster of a `cohort launch` that runs on this host.
#pragma once

#include <sys/types.h>

#include <string>

namespace cohort::cli {

// The TF_CONFIG of a task that the process `launch` has started. Only the user who runs the tasks
// may read it. Throws invalid_argument if there is no such process or task.
std::string tf_config_of_launch(pid_t launch);

}  // namespace cohort::cli
