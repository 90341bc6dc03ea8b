// SPDX-License-Identifier: Apache-2.0
#include "cohort/cli/launch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "cohort/cli/launch/launch_loop.h"
#include "cohort/cli/launch/task_environment.h"
#include "cohort/cli/local_cluster.h"
#include "cohort/core/error.h"
#include "cohort/core/spelling.h"

namespace cohort::cli {
namespace {

// If another program takes one of the ports first, all tasks start again on other ports. This is
// the number of starts, with the first.
constexpr int kStartsMax = 4;
constexpr int kPortsTaken = 75;

std::string absolute(const std::string& directory) {
  std::error_code error;
  const std::filesystem::path resolved = std::filesystem::canonical(directory, error);
  COHORT_CHECK(!error && std::filesystem::is_directory(resolved, error),
               ErrorCode::invalid_argument, "[cli.launch] expected a directory, got '", directory,
               "' (--data); create it or correct the path");
  // COHORT_DATA_DIRS is split at each ':'.
  COHORT_CHECK(directory.find(':') == std::string::npos, ErrorCode::invalid_argument,
               "[cli.launch] expected a directory without ':' in its name, got '", directory,
               "' (--data)");
  return resolved;
}

bool is_standard_server(const std::vector<std::string>& program) {
  const std::string& path = program.front();
  return path.substr(path.rfind('/') + 1) == "cohort" && program.size() > 1 &&
         program[1] == "server";
}

int tasks_to_kill(const LaunchOptions& options, const std::string& job) {
  if (job == "worker") return options.workers;
  if (job == "ps") return options.ps;
  if (job == "chief") return options.is_v1 && options.has_chief ? 1 : 0;
  return job == "evaluator" && options.has_evaluator ? 1 : 0;
}

void check_v1(LaunchOptions& options) {
  COHORT_CHECK(options.is_v1 || (!options.has_chief && !options.has_evaluator),
               ErrorCode::invalid_argument,
               "[cli.launch] expected --v1 with --chief and --evaluator, got none: only there are "
               "these tasks that run the program by themselves; add --v1");
  for (const auto& [role, count] : options.restarts_of) {
    const bool is_role = role == "chief" || role == "worker" || role == "ps" || role == "evaluator";
    COHORT_CHECK(
        is_role && count >= 0, ErrorCode::invalid_argument,
        "[cli.launch] expected a number of restarts of chief, worker, ps or evaluator, got ", count,
        " of '", role, "' (--restart-of)",
        did_you_mean(role, {"chief", "worker", "ps", "evaluator"}));
  }
  if (!options.is_v1) return;
  COHORT_CHECK(options.ps > 0, ErrorCode::invalid_argument,
               "[cli.launch] expected at least one parameter server with --v1, got --ps 0; give "
               "--ps 1 or more");
  COHORT_CHECK(!is_standard_server(options.program), ErrorCode::invalid_argument,
               "[cli.launch] expected a program that trains, got 'cohort server' with --v1, which "
               "starts the parameter servers itself; write the program after --");
  if (!options.server_command.empty()) return;
  std::error_code problem;
  options.server_command = {std::filesystem::read_symlink("/proc/self/exe", problem), "server"};
}

void check(LaunchOptions& options) {
  COHORT_CHECK(!options.program.empty(), ErrorCode::invalid_argument,
               "[cli.launch] expected a program, got none; write it after --, as: cohort launch "
               "--workers 2 --ps 2 -- "
               "./program");
  COHORT_CHECK(options.workers >= 1 && options.workers <= 1000, ErrorCode::invalid_argument,
               "[cli.launch] expected 1 to 1000 workers, got ", options.workers, " (--workers)");
  COHORT_CHECK(options.ps >= 0 && options.ps <= 1000, ErrorCode::invalid_argument,
               "[cli.launch] expected 0 to 1000 parameter servers, got ", options.ps, " (--ps)");
  COHORT_CHECK(options.ps > 0 || !is_standard_server(options.program), ErrorCode::invalid_argument,
               "[cli.launch] expected a program that trains, got '", options.program.front(),
               " server' with --ps 0; without parameter servers the workers run the program "
               "themselves, so write the program itself after --, or give --ps 1 or more");
  COHORT_CHECK(options.restarts >= 0, ErrorCode::invalid_argument,
               "[cli.launch] expected 0 or more restarts, got ", options.restarts, " (--restart)");
  find_program(options.program.front());  // throws if there is none
  check_v1(options);
  for (const PlannedKill& kill : options.kills) {
    COHORT_CHECK(kill.task.index >= 0 && kill.task.index < tasks_to_kill(options, kill.task.job),
                 ErrorCode::invalid_argument, "[cli.launch] expected a ",
                 options.is_v1 ? "task" : "worker or ps", " of this cluster, got '",
                 kill.task.to_string(), "' (--kill)",
                 did_you_mean(kill.task.job, {"worker", "ps"}));
  }
  for (std::string& directory : options.data_dirs) directory = absolute(directory);
}

}  // namespace

std::string PlannedKill::to_string() const {
  if (at_percent > 0)
    return task.to_string() + " at " + std::to_string(at_percent) + " % of the steps";
  return fmt::format("{} after {:.1f} s", task.to_string(),
                     static_cast<double>(after.count()) / 1000);
}

Launch::Launch(LaunchOptions options) : options_(std::move(options)) {
  check(options_);
  stop_.make_reader_nonblocking();
  stop_.make_writer_nonblocking();
}

void Launch::request_stop(int signal) noexcept {
  const auto byte = static_cast<unsigned char>(signal);
  [[maybe_unused]] const ssize_t written = ::write(stop_.writer(), &byte, 1);
}

LaunchResult Launch::run() {
  for (int start = 1;; ++start) {
    LaunchLoop loop(options_, stop_.reader());
    LaunchResult result = loop.run();
    if (!loop.lost_port()) return result;
    result.exit_code = kPortsTaken;
    if (start == kStartsMax) return result;
  }
}

std::vector<std::string> Launch::shell_lines(const LaunchOptions& given) {
  LaunchOptions options = given;
  check(options);
  const LocalCluster cluster(shape_of(options));
  std::vector<std::string> lines;
  for (const TaskId& task : cluster.tasks()) lines.push_back(shell_line(options, cluster, task));
  return lines;
}

}  // namespace cohort::cli
