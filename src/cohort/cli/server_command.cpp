// SPDX-License-Identifier: Apache-2.0
// cohort server: a standard server, which knows no user code.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cohort/cli/commands.h"
#include "cohort/cluster/resolvers/tf_config_resolver.h"
#include "cohort/core/error.h"
#include "cohort/server/server.h"

namespace cohort::cli {
namespace {

class ServerCommand final : public Command {
 public:
  void declare(CLI::App& app) override {
    app.add_option(
           "--data", options_.data_dirs,
           "a directory whose files the coordinator's pipelines may open; repeatable (default: "
           "COHORT_DATA_DIRS)")
        ->check(CLI::ExistingDirectory)
        ->allow_extra_args(false);
    app.add_option("--job-id", options_.job_id,
                   "the job this server belongs to (default: a hash of the cluster)");
    app.footer(
        "The cluster and the own task come from TF_CONFIG, for example\n"
        "  TF_CONFIG='{\"cluster\": {\"chief\": [\"127.0.0.1:4000\"], \"worker\": "
        "[\"127.0.0.1:4001\"],\n"
        "              \"ps\": [\"127.0.0.1:4002\"]}, \"task\": {\"type\": \"worker\", \"index\": "
        "0}}'\n"
        "SIGTERM lets running closures finish, then ends the server with exit code 0.");
  }

  int run(const std::vector<std::string>& program) override {
    COHORT_CHECK(program.empty(), ErrorCode::invalid_argument,
                 "[cli.server] expected no program, got '", program.front(),
                 "'; `cohort launch` runs programs");
    const TfConfigResolver resolver;
    Server server(resolver, options_);
    const std::string task = resolver.task()->to_string();
    if (is_json) {
      const nlohmann::json line = {
          {"event", "serving"}, {"task", task}, {"address", server.address()}};
      std::printf("%s\n", line.dump().c_str());
    } else {
      std::printf("%s serves at %s\n", task.c_str(), server.address().c_str());
    }
    std::fflush(stdout);
    return server.join();
  }

 private:
  ServerOptions options_;
};

}  // namespace

std::unique_ptr<Command> make_server_command() { return std::make_unique<ServerCommand>(); }

}  // namespace cohort::cli
