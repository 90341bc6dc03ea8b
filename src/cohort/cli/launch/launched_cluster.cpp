// SPDX-License-Identifier: Apache-2.0
#include "cohort/cli/launch/launched_cluster.h"

#include <fstream>
#include <string_view>

#include "cohort/core/error.h"

namespace cohort::cli {
namespace {

std::string folder_of(pid_t process) { return "/proc/" + std::to_string(process); }

// Empty if the process has no TF_CONFIG, has ended, or belongs to another user.
std::string tf_config_of(pid_t process) {
  constexpr std::string_view kName = "TF_CONFIG=";
  std::ifstream environment(folder_of(process) + "/environ");
  for (std::string entry; std::getline(environment, entry, '\0');) {
    if (entry.starts_with(kName)) return entry.substr(kName.size());
  }
  return {};
}

}  // namespace

std::string tf_config_of_launch(pid_t launch) {
  const std::string own = tf_config_of(launch);
  std::ifstream children(folder_of(launch) + "/task/" + std::to_string(launch) + "/children");
  for (pid_t child = 0; children >> child;) {
    const std::string config = tf_config_of(child);
    // Until a new child has called execve(), it has the environment of the launch.
    if (!config.empty() && config != own) return config;
  }
  internal::throw_error(ErrorCode::invalid_argument,
                        "[cli.status] expected the process id of a `cohort launch` of this user "
                        "that runs on this host, got ",
                        launch,
                        ", which has no tasks (--launch); `pgrep -f 'cohort launch'` lists "
                        "them");
}

}  // namespace cohort::cli
