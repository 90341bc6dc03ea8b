// SPDX-License-Identifier: Apache-2.0
// The cluster of a `cohort launch` that runs on this host.
#pragma once

#include <sys/types.h>

#include <string>

namespace cohort::cli {

// The TF_CONFIG of a task that the process `launch` has started. The kernel tells it to the tasks'
// own user alone. Throws invalid_argument where there is no such process or task.
std::string tf_config_of_launch(pid_t launch);

}  // namespace cohort::cli
