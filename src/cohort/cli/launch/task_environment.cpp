// SPDX-License-Identifier: Apache-2.0
#include "cohort/cli/launch/task_environment.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

namespace cohort::cli {
namespace {

std::string quoted(const std::string& word) {
  const bool is_plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) ||
           std::string_view("_-./:=,@%+").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (is_plain) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? "'\\''" : std::string(1, c);
  return text + "'";
}

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

// Divides the cores by the number of tasks, so that their thread pools do not compete.
std::string threads_of_server(const LaunchOptions& options) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const int others = (options.has_chief ? 1 : 0) + (options.has_evaluator ? 1 : 0);
  return std::to_string(std::max(1, cores / (options.workers + options.ps + others)));
}

}  // namespace

ClusterShape shape_of(const LaunchOptions& options) {
  return {.workers = options.workers,
          .ps = options.ps,
          .is_v1 = options.is_v1,
          .has_v1_chief = options.is_v1 && options.has_chief,
          .has_evaluator = options.has_evaluator};
}

const std::vector<std::string>& command_of(const LaunchOptions& options, const TaskId& task) {
  return options.is_v1 && task.job == "ps" ? options.server_command : options.program;
}

std::vector<std::pair<std::string, std::string>> environment_of(const LaunchOptions& options,
                                                                const LocalCluster& cluster,
                                                                const TaskId& task) {
  std::vector<std::pair<std::string, std::string>> environment = {
      {"TF_CONFIG", cluster.tf_config(task)}};
  if (!options.data_dirs.empty())
    environment.emplace_back("COHORT_DATA_DIRS",
                             fmt::format("{}", fmt::join(options.data_dirs, ":")));
  if (options.serves_metrics) environment.emplace_back("COHORT_METRICS", "1");
  if ((options.is_v1 || task != LocalCluster::chief()) && !is_set("OMP_NUM_THREADS"))
    environment.emplace_back("OMP_NUM_THREADS", threads_of_server(options));
  if (task == cluster.acting_chief())
    environment.insert(environment.end(), options.chief_environment.begin(),
                       options.chief_environment.end());
  return environment;
}

std::string shell_line(const LaunchOptions& options, const LocalCluster& cluster,
                       const TaskId& task) {
  std::string line;
  for (const auto& [name, value] : environment_of(options, cluster, task))
    line += name + "=" + quoted(value) + " ";
  std::vector<std::string> words;
  for (const std::string& word : command_of(options, task)) words.push_back(quoted(word));
  return line + fmt::format("{}", fmt::join(words, " "));
}

}  // namespace cohort::cli
