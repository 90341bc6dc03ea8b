// SPDX-License-Identifier: Apache-2.0
// cohort config: which cluster the environment tells of, and where each value comes from.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cohort/cli/commands.h"
#include "cohort/cluster/chosen_resolver.h"
#include "cohort/cluster/cluster_resolver.h"
#include "cohort/core/error.h"
#include "cohort/rpc/connection.h"

namespace cohort::cli {
namespace {

constexpr int kConfigSchema = 1;

// A variable that Cohort reads whatever starts the process, and what counts without it
// (docs/environment.md).
struct KnownVariable {
  const char* name;
  const char* without;
};

constexpr KnownVariable kKnownVariables[] = {
    {"COHORT_CLUSTER_RESOLVER", "by the variables of launchers"},
    {"COHORT_TASKS", "all tasks are workers"},
    {"COHORT_OWN_HOST", "the address that leads to the others"},
    {"COHORT_PORT_BASE", "8888"},
    {"COHORT_JOB_ID", "the scheduler's job, or a hash of the cluster"},
    {"COHORT_END_WHEN_UNUSED", "0"},
    {"COHORT_DATA_DIRS", "none"},
    {"COHORT_LOG_LEVEL", "warn"},
    {"COHORT_METRICS", "0"},
    {"COHORT_RUN_EAGERLY", "0"},
    {"TF_COORDINATOR_IGNORE_TRANSIENT_PS_FAILURES", "3"},
    {"TF_COORDINATOR_IGNORE_TRANSIENT_TIMEOUTS", "-1"},
    {"TF_COORDINATOR_SCHEDULE_START_DELAY", "0"},
    {"TF_COORDINATOR_SCHEDULE_START_DELAY_MAX", "0"},
    {"OMP_NUM_THREADS", "the cores, shared by the servers of a host"}};

struct ConfigValue {
  std::string name;
  std::string value;
  std::string from;
};

std::optional<std::string> text_in_environment(const std::string& name) {
  const char* const text = std::getenv(name.c_str());
  return text == nullptr ? std::nullopt : std::optional<std::string>(text);
}

std::vector<ConfigValue> environment_values(const cluster::ChosenResolver& chosen) {
  std::vector<ConfigValue> values;
  const auto has = [&](const std::string& name) {
    for (const ConfigValue& each : values) {
      if (each.name == name) return true;
    }
    return false;
  };
  for (const std::string& name : chosen.variables)
    values.push_back({name, text_in_environment(name).value_or(""), "environment"});
  for (const KnownVariable& known : kKnownVariables) {
    if (has(known.name)) continue;
    const std::optional<std::string> text = text_in_environment(known.name);
    values.push_back({known.name, text.value_or(known.without), text ? "environment" : "default"});
  }
  return values;
}

std::string reason_of(const cluster::ChosenResolver& chosen) {
  if (chosen.cause.empty()) return "default: no variables of a launcher are set";
  const std::string verb = chosen.cause == "COHORT_CLUSTER_RESOLVER" ? " says so" : " is set";
  return chosen.cause + verb;
}

class ConfigCommand final : public Command {
 public:
  void declare(CLI::App& app) override {
    app.add_flag("--no-wait", is_alone_,
                 "do not wait for the other processes of torchrun, mpirun or DMLC, which tell each "
                 "other their addresses: shows no addresses then");
    app.footer(
        "Shows the cluster as ClusterResolver::from_environment() finds it in this process, and\n"
        "the environment variables that count, with where each value comes from. Start it as you\n"
        "start the program: srun cohort config, mpirun -n 4 cohort config, …\n"
        "Exit code: 0; 64 when the variables are wrong; 69 when the other processes do not come.");
  }

  int run(const std::vector<std::string>& program) override {
    COHORT_CHECK(program.empty(), ErrorCode::invalid_argument,
                 "[cli.config] expected no program, got '", program.front(), "'; leave it out");
    const cluster::ChosenResolver chosen = cluster::choose_resolver();
    const std::unique_ptr<ClusterResolver> resolver = cluster::make_resolver(chosen, {});
    std::vector<ConfigValue> values = {{"resolver", chosen.name, reason_of(chosen)}};
    std::optional<ClusterSpec> spec;
    if (!chosen.exchanges_addresses || !is_alone_) {
      resolver->validate();
      spec = resolver->cluster_spec();
    }
    add_cluster(*resolver, spec, chosen, values);
    for (ConfigValue& each : environment_values(chosen)) values.push_back(std::move(each));
    print(is_json ? json_of(chosen, spec, values) + "\n" : text_of(chosen, values));
    return 0;
  }

 private:
  static void add_cluster(const ClusterResolver& resolver, const std::optional<ClusterSpec>& spec,
                          const cluster::ChosenResolver& chosen, std::vector<ConfigValue>& values) {
    const std::string from = "resolver " + chosen.name;
    // DMLC's scheduler may give the index, for which this would wait.
    if (spec || chosen.name != "dmlc") {
      const std::optional<TaskId> task = resolver.task();
      values.push_back({"task", task ? task->to_string() : "none", from});
    }
    if (!spec) return;
    for (const auto& [job, tasks] : spec->tasks()) {
      for (const auto& [index, address] : tasks)
        values.push_back({TaskId{job, index}.to_string(), address, from});
    }
    values.push_back({"rpc_layer", resolver.rpc_layer().value_or(""), from});
    const std::map<std::string, int> accelerators = resolver.num_accelerators();
    std::string text;
    for (const auto& [type, count] : accelerators)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, type);
    values.push_back({"accelerators", text.empty() ? "none" : text, from});
    if (!*spec) return;
    const rpc::JobId job = rpc::job_id_of(*spec);
    values.push_back({"job_id", job.text, job.from});
  }

  static std::string text_of(const cluster::ChosenResolver& chosen,
                             const std::vector<ConfigValue>& values) {
    std::size_t name_width = 0, value_width = 0;
    for (const ConfigValue& each : values) {
      name_width = std::max(name_width, each.name.size());
      value_width = std::max(value_width, std::min<std::size_t>(each.value.size(), 40));
    }
    std::string text;
    for (const ConfigValue& each : values)
      text += fmt::format("{:<{}}  {:<{}}  {}\n", each.name, name_width, each.value, value_width,
                          each.from);
    if (!chosen.conflict.empty()) text += "warning: " + chosen.conflict + "\n";
    return text;
  }

  static std::string json_of(const cluster::ChosenResolver& chosen,
                             const std::optional<ClusterSpec>& spec,
                             const std::vector<ConfigValue>& values) {
    nlohmann::json rows = nlohmann::json::array();
    for (const ConfigValue& each : values)
      rows.push_back({{"name", each.name}, {"value", each.value}, {"from", each.from}});
    const nlohmann::json line = {
        {"schema", kConfigSchema},
        {"resolver", chosen.name},
        {"cause", chosen.cause.empty() ? nlohmann::json() : nlohmann::json(chosen.cause)},
        {"conflict", chosen.conflict.empty() ? nlohmann::json() : nlohmann::json(chosen.conflict)},
        {"cluster", spec ? nlohmann::json::parse(spec->to_json()) : nlohmann::json()},
        {"values", std::move(rows)}};
    return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

  bool is_alone_ = false;  // --no-wait
};

}  // namespace

std::unique_ptr<Command> make_config_command() { return std::make_unique<ConfigCommand>(); }

}  // namespace cohort::cli
