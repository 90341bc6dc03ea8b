// SPDX-License-Identifier: Apache-2.0
// cohort launch: turns options into a Launch, and signals into calls of request_stop().
#include <c10/util/ScopeExit.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "cohort/cli/commands.h"
#include "cohort/cli/launch.h"
#include "cohort/core/error.h"

namespace cohort::cli {
namespace {

std::atomic<Launch*> launch_of_signals{nullptr};

void on_signal(int signal) {
  if (Launch* launch = launch_of_signals) launch->request_stop(signal);
}

// From here on SIGINT, SIGTERM and SIGHUP stop the launch; ignored signals stay ignored.
void route_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    if (!is_ignored(signal)) ::sigaction(signal, &action, nullptr);
  }
}

std::chrono::milliseconds from_seconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

// "worker:1@2.5" is after 2.5 seconds; "worker:1@50%" is after half of the chief's steps.
PlannedKill parse_kill(const std::string& text) {
  const std::size_t at = text.find('@');
  char* end = nullptr;
  const double number = at == std::string::npos ? -1 : std::strtod(text.c_str() + at + 1, &end);
  const bool is_percent = end != nullptr && std::strcmp(end, "%") == 0;
  COHORT_CHECK(
      end != nullptr && end != text.c_str() + at + 1 && (is_percent || *end == '\0') &&
          number >= 0 && number <= (is_percent ? 100 : 1e9),
      ErrorCode::invalid_argument,
      "[cli.launch] expected TASK@SECONDS or TASK@PERCENT%, as worker:1@2.5 or worker:1@50%, got '",
      text, "' (--kill)");
  PlannedKill kill{.task = TaskId::parse(text.substr(0, at))};
  if (is_percent) kill.at_percent = static_cast<int>(number);
  if (!is_percent) kill.after = from_seconds(number);
  return kill;
}

// Checks that the text of an option is a number in this range. The kind "a whole number" allows
// only digits.
CLI::Validator number_between(const std::string& kind, int min, int max) {
  const std::string range = std::to_string(min) + " to " + std::to_string(max);
  return {[=](const std::string& text) -> std::string {
            char* end = nullptr;
            const double number = std::strtod(text.c_str(), &end);
            const bool is_number = !text.empty() && *end == '\0' && std::isfinite(number);
            const bool is_kind = kind != "a whole number" ||
                                 text.find_first_not_of("0123456789") == std::string::npos;
            if (is_number && is_kind && number >= min && number <= max) return {};
            return "expected " + kind + " of " + range + ", got '" + text + "'";
          },
          range};
}

std::pair<std::string, std::string> parse_variable(const std::string& text) {
  const std::size_t equals = text.find('=');
  COHORT_CHECK(equals != std::string::npos && equals > 0, ErrorCode::invalid_argument,
               "[cli.launch] expected NAME=VALUE, got '", text, "' (--chief-env)");
  return {text.substr(0, equals), text.substr(equals + 1)};
}

// "worker=3".
std::pair<std::string, int> parse_restart(const std::string& text) {
  const std::size_t equals = text.find('=');
  const std::string number = equals == std::string::npos ? "" : text.substr(equals + 1);
  COHORT_CHECK(equals > 0 && !number.empty() && number.size() <= 6 &&
                   number.find_first_not_of("0123456789") == std::string::npos,
               ErrorCode::invalid_argument, "[cli.launch] expected ROLE=N, as worker=3, got '",
               text, "' (--restart-of)");
  return {text.substr(0, equals), std::stoi(number)};
}

nlohmann::json to_json(const LaunchResult& result) {
  nlohmann::json tasks = nlohmann::json::array();
  for (const TaskReport& task : result.tasks) {
    nlohmann::json line = {{"task", task.task.to_string()},
                           {"exit_code", task.last_exit.shell_code()},
                           {"starts", task.starts},
                           {"kills", task.kills}};
    if (task.last_exit.signal != 0) line["signal"] = name_of_signal(task.last_exit.signal);
    tasks.push_back(std::move(line));
  }
  return {{"exit_code", result.exit_code}, {"tasks", tasks}};
}

constexpr const char* kLaunchFooter =
    "cohort launch [OPTIONS] -- PROGRAM [ARGUMENTS]\n"
    "Starts PROGRAM once for each task, with TF_CONFIG and free ports of 127.0.0.1: as ps:N "
    "and "
    "worker:N,\n"
    "with the name of the task before each line of their output, and as chief:0, the "
    "coordinator. When the\n"
    "chief ends, or on Ctrl-C, all tasks are ended.\n"
    "While it runs, `cohort status --launch PID` shows how the tasks are; this command, with "
    "the "
    "process id,\n"
    "is printed at the start.\n"
    "Exit code: the chief's; 128 + signal if a signal ended it, or this command (the chief "
    "then ends first,\n"
    "and nothing starts again); 64 if a task cannot be configured;\n"
    "75 if other programs took the ports, or output could not be written.\n"
    "With --v1 PROGRAM runs as chief:0 (--chief), worker:N and evaluator:0 (--evaluator), and "
    "each ps:N is a\n"
    "`cohort server`. When all that run PROGRAM have ended, the servers are ended; if one "
    "fails "
    "and does not\n"
    "start again, all are, and its exit code is that of the job. For several hosts, run under "
    "srun, mpirun or\n"
    "Kubernetes.\n"
    "With --ps 0 there is no chief: PROGRAM runs as each worker:N, for "
    "MultiWorkerMirroredStrategy. The workers\n"
    "are one job, which ends when all have ended. If one fails and does not start again, the "
    "others are ended,\n"
    "and its exit code is that of the job.";

class LaunchCommand final : public Command {
 public:
  void declare(CLI::App& app) override {
    app.add_option("--workers", options_.workers, "worker tasks")
        ->check(number_between("a whole number", 1, 1000))
        ->capture_default_str();
    app.add_option("--ps", options_.ps,
                   "parameter servers; 0: the workers run the program and train together, without "
                   "a coordinator")
        ->check(number_between("a whole number", 0, 1000))
        ->capture_default_str();
    declare_v1(app);
    app.add_option("--data", options_.data_dirs,
                   "a directory in which the tasks may read and create files; repeatable")
        ->allow_extra_args(false);
    app.add_option("--chief-env", variables_,
                   "NAME=VALUE in the environment of the chief only (with --ps 0, of worker:0); "
                   "repeatable")
        ->allow_extra_args(false);
    app.add_option("--kill", kills_,
                   "TASK@SECONDS or TASK@PERCENT%: kill a task that long after the start, or "
                   "when the program's progress bar has come that far; repeatable")
        ->allow_extra_args(false);
    app.add_option(
           "--restart", options_.restarts,
           "how often each worker or parameter server that crashes or is killed is started "
           "again, and the chief after exit codes 69 and 75 (with --v1 after all but 64); the "
           "variables of a parameter server are lost")
        ->check(number_between("a whole number", 0, 1'000'000))
        ->capture_default_str();
    app.add_option("--restart-delay", restart_seconds_, "seconds before a task starts again")
        ->check(number_between("seconds", 0, 1'000'000'000))
        ->capture_default_str();
    app.add_option("--late", late_seconds_,
                   "with --ps 0: seconds that a worker may do nothing after another one has "
                   "finished; then it is ended")
        ->check(number_between("seconds", 0, 1'000'000'000))
        ->capture_default_str();
    app.add_option("--grace", grace_seconds_, "seconds between SIGTERM and SIGKILL at the end")
        ->check(number_between("seconds", 0, 1'000'000'000))
        ->capture_default_str();
    app.add_flag("--metrics", options_.serves_metrics,
                 "every task answers HTTP requests for /metrics at its address (COHORT_METRICS=1)");
    app.add_flag("--dry-run", is_dry_run_, "print the line that starts each task by hand, and end");
    app.footer(kLaunchFooter);
  }

  int run(const std::vector<std::string>& program) override {
    options_.program = program;
    for (const std::string& text : kills_) options_.kills.push_back(parse_kill(text));
    for (const std::string& text : variables_)
      options_.chief_environment.push_back(parse_variable(text));
    for (const std::string& text : role_restarts_) options_.restarts_of.insert(parse_restart(text));
    options_.restart_delay = from_seconds(restart_seconds_);
    options_.late_time = from_seconds(late_seconds_);
    options_.grace = from_seconds(grace_seconds_);
    if (is_dry_run_) return print_lines();
    Launch launch(options_);
    launch_of_signals = &launch;
    const auto end_of_route = c10::make_scope_exit([] { launch_of_signals = nullptr; });
    route_signals();
    const LaunchResult result = launch.run();
    if (result.exit_code == 0 && result.output_error != 0)
      throw output_error(
          options_.ps > 0 ? "where the servers' lines go" : "where the workers' lines go",
          result.output_error);
    if (is_json) print(to_json(result).dump() + "\n");
    return result.exit_code;
  }

 private:
  void declare_v1(CLI::App& app) {
    app.add_flag("--v1", options_.is_v1,
                 "the workers, the chief and the evaluator run the program by themselves, and each "
                 "ps a server, as for v1::ParameterServerStrategy; a worker that serves the "
                 "coordinator of a ParameterServerStrategy would never end");
    app.add_flag("--chief", options_.has_chief,
                 "with --v1: a task chief:0; else worker:0 acts as it");
    app.add_flag("--evaluator", options_.has_evaluator, "with --v1: a task evaluator:0");
    app.add_option("--restart-of", role_restarts_,
                   "ROLE=N: another number of restarts for chief, worker, ps or evaluator; "
                   "repeatable")
        ->allow_extra_args(false);
  }
  int print_lines() const {
    const std::vector<std::string> lines = Launch::shell_lines(options_);
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    print(is_json ? nlohmann::json(lines).dump() + "\n" : text);
    return 0;
  }

  LaunchOptions options_;
  std::vector<std::string> kills_;
  std::vector<std::string> variables_;
  std::vector<std::string> role_restarts_;
  double restart_seconds_ = 1;
  double late_seconds_ = 30;
  double grace_seconds_ = 10;
  bool is_dry_run_ = false;
};

}  // namespace

std::unique_ptr<Command> make_launch_command() { return std::make_unique<LaunchCommand>(); }

}  // namespace cohort::cli
