// SPDX-License-Identifier: Apache-2.0
// cohort server: a standard server, which contains no user code.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "cohort/cli/commands.h"
#include "cohort/cli/task_process.h"
#include "cohort/cluster/cluster_resolver.h"
#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/rpc/channel.h"
#include "cohort/server/server.h"

namespace cohort::cli {
namespace {

// A second signal ends the process at once.
void end_at_next_signal() {
  for (const int number : {SIGTERM, SIGINT}) {
    if (!is_ignored(number)) std::signal(number, SIG_DFL);
  }
}

class ServerCommand final : public Command {
 public:
  void declare(CLI::App& app) override {
    app.add_option("--data", options_.data_dirs,
                   "a directory in which pipelines may read and create files; repeatable (default: "
                   "COHORT_DATA_DIRS)")
        ->check(CLI::ExistingDirectory)
        ->allow_extra_args(false);
    app.add_option(
        "--job-id", options_.job_id,
        "the job this server belongs to (default: COHORT_JOB_ID, the Slurm job, or a hash of "
        "the cluster)");
    std::vector<std::string> backends = rpc::backend_names();
    std::erase(backends, "inprocess");  // it cannot reach other processes
    app.add_option("--backend", options_.backends,
                   "a backend of the data plane: " + CLI::detail::join(backends, " or ") +
                       "; repeatable, the preferred one first (default: stream)")
        ->check(CLI::IsMember(backends))
        ->allow_extra_args(false);
    const std::map<std::string, PayloadChecksums> sums = {
        {"between-hosts", PayloadChecksums::between_hosts},
        {"never", PayloadChecksums::never},
        {"always", PayloadChecksums::always}};
    app.add_option_function<std::string>(
           "--payload-checksums",
           [this, sums](const std::string& name) { options_.payload_checksums = sums.at(name); },
           "whether tensors travel with a checksum: between-hosts, never or always "
           "(default: between-hosts, or as the coordinator says)")
        ->check(CLI::IsMember(sums));
    app.add_option("--data-port", options_.data_port,
                   "a second port, for tensors (default: all travels over the port of the task's "
                   "address)")
        ->check(CLI::Range(1, 65535));
    app.add_flag(
        "--metrics", options_.serves_metrics,
        "answer HTTP requests for /metrics at the task's port, with the names of variables, "
        "for everybody who reaches it (default: COHORT_METRICS)");
    app.add_option("--hot-rows", options_.hot_rows,
                   "how many of the rows of each variable that are used most often to tell in "
                   "metrics and status")
        ->check(CLI::Range(0, 1000))
        ->capture_default_str();
    app.add_option_function<double>(
           "--end-when-unused",
           [this](double seconds) {
             options_.end_when_unused =
                 std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
           },
           "seconds after which it ends with 0 when tasks were connected and none is any more, "
           "as under srun or mpirun, which wait for all tasks (default: COHORT_END_WHEN_UNUSED, "
           "or else never)")
        ->check(CLI::Range(0.01, 1e9));
    app.footer(
        "The cluster and the own task come from the environment (`cohort config` shows them): "
        "from\n"
        "TF_CONFIG, or the variables of srun, torchrun or mpirun and COHORT_TASKS. For example\n"
        "  TF_CONFIG='{\"cluster\": {\"chief\": [\"127.0.0.1:4000\"], \"worker\": "
        "[\"127.0.0.1:4001\"],\n"
        "              \"ps\": [\"127.0.0.1:4002\"]}, \"task\": {\"type\": \"worker\", \"index\": "
        "0}}'\n"
        "SIGTERM lets running closures finish, for five seconds, then ends the server with exit "
        "code 0; a\n"
        "second one ends it at once. Exit code 64: it can never serve as configured; 69: the name "
        "of its own\n"
        "host was not resolved for a minute; 75: try again (another process has its port, or "
        "memory "
        "or threads\n"
        "are missing), or its first line could not be written.");
  }

  int run(const std::vector<std::string>& program) override {
    COHORT_CHECK(program.empty(), ErrorCode::invalid_argument,
                 "[cli.server] expected no program, got '", program.front(),
                 "'; `cohort launch` runs programs");
    const std::unique_ptr<ClusterResolver> found = ClusterResolver::from_environment();
    const ClusterResolver& resolver = *found;
    COHORT_CHECK(std::getenv("TF_CONFIG") != nullptr || resolver.cluster_spec(),
                 ErrorCode::invalid_argument,
                 "[cli.server] expected the cluster and this task in the environment variable "
                 "TF_CONFIG, which is unset; set it as the example of `cohort server --help` does, "
                 "the same on every task but for \"task\", or start all tasks of this host with "
                 "`cohort launch`, or those of several hosts with srun, mpirun or torchrun");
    resolver.validate();
    const std::string type = resolver.task_type().value_or("");
    COHORT_CHECK(type != "chief" && type != "evaluator", ErrorCode::invalid_argument,
                 "[cli.server] expected a task of job ps or worker, got \"", type,
                 "\"; run the program itself for this task, or change task.type in TF_CONFIG, or "
                 "COHORT_TASKS");
    std::optional<Server> server;
    try {
      server.emplace(resolver, options_);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::cancelled) throw;
      log_warn(error.message());  // a signal arrived while it looked up its own address
      return 0;
    }
    const std::string task = resolver.task()->to_string();
    const int output_code = say_that_it_serves(task, server->address());
    const int code = std::max(server->join(), output_code);
    end_at_next_signal();
    if (!server->stop())
      std::_Exit(code);  // a closure still runs, and uses objects that exit() would destroy
    return code;
  }

 private:
  // Prints that the server is ready. If this line cannot be written, a warning is logged, the
  // server goes on, and the result is the exit code with which it must end; otherwise 0.
  int say_that_it_serves(const std::string& task, const std::string& address) const {
    const nlohmann::json line = {{"event", "serving"}, {"task", task}, {"address", address}};
    try {
      print((is_json ? line.dump() : task + " serves at " + address) + "\n");
      return 0;
    } catch (const Error& error) {
      log_warn(error.message(), "; the server goes on, and its exit code will say so");
      return exit_code_of(error);
    }
  }

  ServerOptions options_;
};

}  // namespace

std::unique_ptr<Command> make_server_command() { return std::make_unique<ServerCommand>(); }

}  // namespace cohort::cli
