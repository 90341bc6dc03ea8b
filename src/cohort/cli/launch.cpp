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
  for (const PlannedKill& kill : options.kills) {
    const int count = kill.task.job == "worker" ? options.workers
                      : kill.task.job == "ps"   ? options.ps
                                                : 0;
    COHORT_CHECK(kill.task.index >= 0 && kill.task.index < count, ErrorCode::invalid_argument,
                 "[cli.launch] expected a worker or ps of this cluster, got '",
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
  const LocalCluster cluster(options.workers, options.ps);
  std::vector<std::string> lines;
  for (const TaskId& task : cluster.tasks()) lines.push_back(shell_line(options, cluster, task));
  return lines;
}

}  // namespace cohort::cli
