// SPDX-License-Identifier: Apache-2.0
// cohort check: whether the tasks of a cluster can work together, before they do.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "cohort/cli/check/comparison.h"
#include "cohort/cli/check/exchange.h"
#include "cohort/cli/check/finding.h"
#include "cohort/cli/check/task_facts.h"
#include "cohort/cli/commands.h"
#include "cohort/cluster/chosen_resolver.h"
#include "cohort/core/error.h"
#include "cohort/data/allowed_path.h"

namespace cohort::cli {
namespace {

constexpr int kCheckSchema = 1;

// The cluster as this task sees it, and what became of finding it.
struct FoundCluster {
  std::string launcher;
  ClusterSpec spec;
  std::string task;     // empty: a coordinator without an address
  std::string address;  // of this task; empty where it has none
  std::vector<Finding> findings;
};

FoundCluster find_cluster() {
  FoundCluster found{.launcher = "none"};
  try {
    const cluster::ChosenResolver chosen = cluster::choose_resolver();
    found.launcher = chosen.name;
    if (!chosen.conflict.empty()) found.findings.push_back(finding("C103", "", chosen.conflict));
    const std::unique_ptr<ClusterResolver> resolver = cluster::make_resolver(chosen, {});
    resolver->validate();
    found.spec = resolver->cluster_spec();
    const std::optional<std::string> type = resolver->task_type();
    const std::optional<std::int64_t> index = resolver->task_id();
    for (Finding& each : findings_of_cluster(found.spec, type, index))
      found.findings.push_back(std::move(each));
    if (!type || !index) return found;
    found.task = TaskId{*type, *index}.to_string();
    if (found.spec.has_task(*type, *index)) found.address = found.spec.task_address(*type, *index);
  } catch (const Error& error) {
    const bool is_about_others =
        error.code() == ErrorCode::deadline_exceeded || error.code() == ErrorCode::unavailable;
    found.findings.push_back(finding(is_about_others ? "C110" : "C102", "", error.message()));
  }
  return found;
}

std::vector<PeerReport> peers_in(const FoundCluster& found) {
  std::vector<PeerReport> peers;
  for (const auto& [job, tasks] : found.spec.tasks()) {
    for (const auto& [index, address] : tasks) {
      const std::string task = TaskId{job, index}.to_string();
      if (task != found.task) peers.push_back({.task = task, .address = address});
    }
  }
  return peers;
}

// Whether there is a device that reads and writes the memory of programs itself (RDMA).
bool has_fabric() {
  std::error_code problem;
  return !std::filesystem::is_empty("/sys/class/infiniband", problem) && !problem;
}

const char* name_of_severity(Severity severity) {
  return severity == Severity::error ? "error" : "warning";
}

class CheckCommand final : public Command {
 public:
  void declare(CLI::App& app) override {
    app.add_option("--data", data_,
                   "a folder that the datasets of this task need; can be given several times "
                   "(default: COHORT_DATA_DIRS)");
    app.add_option("--timeout", timeout_seconds_,
                   "seconds until all other tasks must have been reached")
        ->check(CLI::Range(0.01, 1e6))
        ->capture_default_str();
    app.footer(
        "Start it in every task at about the same time, as you start the program (srun cohort\n"
        "check, mpirun -n 4 cohort check, …), while the program does not run. It listens at the\n"
        "own address, dials all other tasks, and compares clusters, names, ports, versions,\n"
        "clocks, limits and data folders. docs/guide/check.md lists the codes.\n"
        "Exit code: 0 without errors (warnings do not count); else that of the first error: 64\n"
        "something must be corrected, 69 a task cannot be reached, 75 try again.");
  }

  int run(const std::vector<std::string>& program) override {
    COHORT_CHECK(program.empty(), ErrorCode::invalid_argument,
                 "[cli.check] expected no program, got '", program.front(), "'; leave it out");
    COHORT_CHECK(!std::isnan(timeout_seconds_), ErrorCode::invalid_argument,
                 "[cli.check] expected --timeout from 0.01 to 1e6 seconds, got nan");
    const TimePoint start = Clock::system().now();
    if (data_.empty()) data_ = data::data_dirs_of_environment();
    FoundCluster found = find_cluster();
    SetupReport setup{.launcher = found.launcher,
                      .own = own_facts(found.task, found.spec.to_json(), data_),
                      .tasks = std::ssize(peers_in(found)) + 1,
                      .has_fabric = has_fabric()};
    // Where the cluster itself is wrong, nobody is where it says.
    if (exit_code_of(found.findings) == 0) reach_others(found, setup);
    for (Finding& each : findings_of_setup(setup)) found.findings.push_back(std::move(each));
    const std::chrono::duration<double> took = Clock::system().now() - start;
    print(is_json ? json_of(found, setup, took.count()) + "\n"
                  : text_of(found, setup, took.count()));
    return exit_code_of(found.findings);
  }

 private:
  void reach_others(const FoundCluster& found, SetupReport& setup) const {
    const auto timeout =
        std::chrono::duration_cast<Duration>(std::chrono::duration<double>(timeout_seconds_));
    ExchangedFacts exchanged =
        exchange_facts(setup.own, found.address, peers_in(found), Deadline::after(timeout));
    setup.listening = std::move(exchanged.listening);
    setup.is_listening = exchanged.is_listening;
    setup.peers = std::move(exchanged.peers);
  }

  static std::string name_of_task(const FoundCluster& found) {
    return found.task.empty() ? "coordinator" : found.task;
  }

  static std::string text_of(const FoundCluster& found, const SetupReport& setup, double seconds) {
    std::string text;
    for (const Finding& each : found.findings)
      text += fmt::format("{} {}{}: {}\n    {}\n", each.kind->code,
                          name_of_severity(each.kind->severity),
                          each.task.empty() ? "" : " " + each.task, each.text, each.kind->advice);
    const auto reached = std::count_if(
        setup.peers.begin(), setup.peers.end(),
        [](const PeerReport& peer) { return peer.state == PeerReport::State::answers; });
    return text + fmt::format("{}: reached {} of {} other tasks in {:.1f} s, {} ({})\n",
                              name_of_task(found), reached, setup.peers.size(), seconds,
                              found.findings.empty()              ? "found nothing wrong"
                              : exit_code_of(found.findings) == 0 ? "found no error"
                                                                  : "found errors",
                              found.launcher);
  }

  static std::string json_of(const FoundCluster& found, const SetupReport& setup, double seconds) {
    nlohmann::json findings = nlohmann::json::array();
    for (const Finding& each : found.findings)
      findings.push_back(
          {{"code", each.kind->code},
           {"severity", name_of_severity(each.kind->severity)},
           {"task", each.task.empty() ? nlohmann::json() : nlohmann::json(each.task)},
           {"text", each.text},
           {"advice", each.kind->advice}});
    nlohmann::json peers = nlohmann::json::array();
    for (const PeerReport& peer : setup.peers) {
      const bool answers = peer.state == PeerReport::State::answers;
      peers.push_back({{"task", peer.task},
                       {"address", peer.address},
                       {"answers", answers},
                       {"clock_difference",
                        answers ? nlohmann::json(peer.clock_difference) : nlohmann::json()}});
    }
    const nlohmann::json line = {
        {"schema", kCheckSchema},
        {"task", name_of_task(found)},
        {"address", found.address.empty() ? nlohmann::json() : nlohmann::json(found.address)},
        {"resolver", found.launcher},
        {"seconds", seconds},
        {"exit_code", exit_code_of(found.findings)},
        {"findings", std::move(findings)},
        {"peers", std::move(peers)},
        {"own", nlohmann::json::parse(text_of_facts(setup.own))}};
    return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

  std::vector<std::string> data_;
  double timeout_seconds_ = 10;
};

}  // namespace

std::unique_ptr<Command> make_check_command() { return std::make_unique<CheckCommand>(); }

}  // namespace cohort::cli
