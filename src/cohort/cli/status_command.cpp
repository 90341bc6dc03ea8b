// SPDX-License-Identifier: Apache-2.0
// cohort status: asks all tasks of a cluster for their health at the same time.
#include <sys/types.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "cohort/cli/commands.h"
#include "cohort/cli/status_report.h"
#include "cohort/cluster/chosen_resolver.h"
#include "cohort/cluster/cluster_resolver.h"
#include "cohort/cluster/validation.h"
#include "cohort/collective/member_status.h"
#include "cohort/core/error.h"
#include "cohort/rpc/connection.h"
#include "cohort/rpc/health_probe.h"

namespace cohort::cli {
namespace {

constexpr const char* kRemedy =
    "set TF_CONFIG as the tasks have it, start it as the tasks were started (srun --overlap), give "
    "--cluster a JSON file or addresses, or give --launch the process id of a `cohort launch`";

constexpr const char* kClusterVariable = "TF_CONFIG";

std::string text_of_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  COHORT_CHECK(file.good() && text.good(), ErrorCode::invalid_argument,
               "[cli.status] expected a file that can be read, got '", path, "' (--cluster)");
  return text.str();
}

// `text` is a cluster, {"worker": […], …}, or a whole TF_CONFIG.
ClusterSpec spec_of(const std::string& text, const std::string& where) {
  const nlohmann::json parsed = nlohmann::json::parse(text, nullptr, false);
  const bool is_config = parsed.is_object() && parsed.contains("cluster");
  return ClusterSpec::from_json(is_config ? parsed["cluster"].dump() : text,
                                "the cluster of " + where);
}

std::string folder_of(pid_t process) { return "/proc/" + std::to_string(process); }

// A variable of another process; empty if it is not set there, or if the process has ended or
// belongs to another user.
std::string variable_of(pid_t process, const std::string& name) {
  const std::string beginning = name + "=";
  std::ifstream environment(folder_of(process) + "/environ");
  for (std::string entry; std::getline(environment, entry, '\0');) {
    if (entry.starts_with(beginning)) return entry.substr(beginning.size());
  }
  return {};
}

// A task that the process `launch` has started. Only the user who runs it may read its variables.
// Throws invalid_argument if there is no such process or task.
pid_t task_of_launch(pid_t launch) {
  const std::string own = variable_of(launch, kClusterVariable);
  std::ifstream children(folder_of(launch) + "/task/" + std::to_string(launch) + "/children");
  for (pid_t child = 0; children >> child;) {
    const std::string config = variable_of(child, kClusterVariable);
    // Until a new child has called execve(), it has the environment of the launch.
    if (!config.empty() && config != own) return child;
  }
  internal::throw_error(ErrorCode::invalid_argument,
                        "[cli.status] expected the process id of a `cohort launch` of this user "
                        "that runs on this host, got ",
                        launch,
                        ", which has no tasks (--launch); `pgrep -f 'cohort launch'` lists "
                        "them");
}

ClusterSpec spec_of_environment() {
  const cluster::ChosenResolver chosen = cluster::choose_resolver();
  COHORT_CHECK(!chosen.exchanges_addresses, ErrorCode::invalid_argument,
               "[cli.status] expected a cluster whose addresses are known beforehand, got that of ",
               chosen.name, " (", chosen.cause,
               "), whose processes take new ones at each start; give --cluster their addresses");
  return ClusterResolver::from_environment()->cluster_spec();
}

std::vector<TaskStatus> tasks_of(const ClusterSpec& spec) {
  std::vector<TaskStatus> tasks;
  for (const char* job : {"chief", "worker", "ps"}) {
    const auto found = spec.tasks().find(job);
    if (found == spec.tasks().end()) continue;
    for (const auto& [index, address] : found->second)
      tasks.push_back({TaskId{job, index}.to_string(), address, {}});
  }
  return tasks;
}

// Says that the coordinator cannot be asked, and what to add to the cluster for that.
std::string missing_chief() {
  return "the cluster has no \"chief\", so the coordinator has no address where it can be asked; "
         "add \"chief\": [\"host:port\"] to the cluster of every task, and \"task\": {\"type\": "
         "\"chief\", \"index\": 0} to the coordinator's TF_CONFIG";
}

class StatusCommand final : public Command {
 public:
  void declare(CLI::App& app) override {
    CLI::Option* cluster =
        app.add_option("--cluster", cluster_,
                       "the tasks' addresses, or one JSON file with the cluster, as in TF_CONFIG "
                       "(default: that of the environment, as `cohort config` shows it)");
    app.add_option("--launch", launch_,
                   "the process id of a `cohort launch` of this user on this host, which prints it "
                   "at its start")
        ->check(CLI::PositiveNumber)
        ->excludes(cluster);
    app.add_option("--job-id", job_id_,
                   "the job of the tasks (default: COHORT_JOB_ID, the Slurm job, or a hash of the "
                   "cluster); without the right one, they do not show the texts of errors");
    app.add_option("--timeout", timeout_seconds_, "seconds until all must have answered")
        ->check(CLI::Range(0.01, 1e6))
        ->capture_default_str();
    app.footer(
        "Asks all tasks at once and changes nothing. A coordinator answers at the address of "
        "\"chief\".\n"
        "  OPEN    closures that are queued or run      PULL, PUSH  bytes of variables and of "
        "updates\n"
        "  RUN     closures that ended well             LOST        lost peers; a coordinator's: "
        "workers\n"
        "  PUSHES  pushes of updates that were applied  END         time since a closure ended "
        "last\n"
        "  DROP    pushes that came twice or too late   START       another one after a restart\n"
        "Of workers that train together, without parameter servers:\n"
        "  STEPS   steps that ended, and PER S of late  LAST        time since a step ended last\n"
        "  GROUP   workers of its group, or \"forms\"    below       what its ProgressBar shows\n"
        "The JSON of --json is described in docs/formats/status.md.\n"
        "Exit code: 0 when all answer, 69 when some do not, 64 when the cluster is not right.");
  }

  int run(const std::vector<std::string>& program) override {
    COHORT_CHECK(program.empty(), ErrorCode::invalid_argument,
                 "[cli.status] expected no program, got '", program.front(), "'; leave it out");
    COHORT_CHECK(!std::isnan(timeout_seconds_), ErrorCode::invalid_argument,
                 "[cli.status] expected --timeout from 0.01 to 1e6 seconds, got nan");
    ClusterStatus status = find_tasks();
    const auto timeout =
        std::chrono::duration_cast<Duration>(std::chrono::duration<double>(timeout_seconds_));
    const Deadline deadline = Deadline::after(timeout);
    is_synchronous_ ? ask_members(status, deadline) : ask_tasks(status, deadline);
    print(is_json ? json_of(status) + "\n" : table_of(status));
    return exit_code_of(status);
  }

 private:
  void ask_tasks(ClusterStatus& status, Deadline deadline) const {
    std::vector<rpc::ProbedTask> asked;
    for (const TaskStatus& task : status.tasks) asked.push_back({task.task, task.address});
    std::vector<rpc::ProbeResult> results = rpc::probe_health(asked, job_id_, deadline);
    bool has_stranger = false;
    for (std::size_t i = 0; i < results.size(); ++i) {
      TaskStatus& task = status.tasks[i];
      task.probe = std::move(results[i]);
      has_stranger = has_stranger || task.probe.state == rpc::ProbeResult::State::stranger;
      if (task.task.starts_with("chief:") &&
          task.probe.state == rpc::ProbeResult::State::nobody_listens) {
        task.probe.reason +=
            "; the coordinator does not run, or its TF_CONFIG does not say that it is " + task.task;
      }
    }
    // An address alone may be that of a worker of a synchronous job.
    if (has_stranger && status.tasks.front().task.empty()) ask_members(status, deadline);
  }

  // Asks the tasks that no other question has reached.
  void ask_members(ClusterStatus& status, Deadline deadline) const {
    std::vector<TaskStatus*> open;
    std::vector<collective::WorkerTask> asked;
    for (TaskStatus& task : status.tasks) {
      const bool was_asked = !is_synchronous_;
      if (was_asked && task.probe.state != rpc::ProbeResult::State::stranger) continue;
      open.push_back(&task);
      asked.push_back({task.task, task.address});
    }
    std::vector<collective::MemberProbe> results =
        collective::probe_members(asked, job_id_, deadline);
    for (std::size_t i = 0; i < results.size(); ++i) {
      TaskStatus& task = *open[i];
      if (!is_synchronous_ && results[i].state != collective::MemberProbe::State::answers) continue;
      task = status_of(task.task, task.address, std::move(results[i]));
    }
  }

  ClusterStatus find_tasks() {
    const bool is_file = cluster_.size() == 1 && std::filesystem::is_regular_file(cluster_.front());
    if (!cluster_.empty() && !is_file) return addresses_alone();
    const pid_t task = launch_ > 0 ? task_of_launch(launch_) : 0;
    if (launch_ > 0 && job_id_.empty()) job_id_ = variable_of(task, "COHORT_JOB_ID");
    const ClusterSpec spec = launch_ > 0 ? spec_of(variable_of(task, kClusterVariable),
                                                   "process " + std::to_string(launch_))
                             : is_file   ? spec_of(text_of_file(cluster_.front()), cluster_.front())
                                         : spec_of_environment();
    ClusterStatus status{.tasks = tasks_of(spec), .missing = {}};
    COHORT_CHECK(!status.tasks.empty(), ErrorCode::invalid_argument,
                 "[cli.status] expected a cluster with chief, worker or ps tasks, got ",
                 spec.to_string(), "; ", kRemedy);
    validate_addresses(spec);
    is_synchronous_ = !spec.tasks().contains("ps");
    if (!is_synchronous_ && status.tasks.front().task != "chief:0")
      status.missing.push_back(missing_chief());
    job_id_ = rpc::job_id_of(spec, job_id_).text;
    return status;
  }

  ClusterStatus addresses_alone() const {
    ClusterStatus status;
    for (const std::string& address : cluster_) {
      COHORT_CHECK(address.find(':') != std::string::npos, ErrorCode::invalid_argument,
                   "[cli.status] expected \"host:port\" or a JSON file, got '", address,
                   "', which is neither (--cluster)");
      status.tasks.push_back({"", address, {}});
    }
    return status;
  }

  std::vector<std::string> cluster_;
  int launch_ = 0;  // a process id; 0 if it was not given
  std::string job_id_;
  double timeout_seconds_ = 5;
  bool is_synchronous_ = false;  // the workers of the cluster train together
};

}  // namespace

std::unique_ptr<Command> make_status_command() { return std::make_unique<StatusCommand>(); }

}  // namespace cohort::cli
