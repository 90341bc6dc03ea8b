// SPDX-License-Identifier: Apache-2.0
// cohort_conformance [DIRECTORY]: see README.md.
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>

#include "cohort/core/log.h"
#include "tests/conformance/runner.h"
#include "tests/conformance/strategy_cluster.h"
#include "tests/conformance/strategy_worker_process.h"

namespace {

// The directory in COHORT_INPUT_CASES, else the project's copy.
std::string default_directory() {
  const char* chosen = std::getenv("COHORT_INPUT_CASES");
  return chosen != nullptr ? chosen : COHORT_SOURCE_DIR "/tests/conformance/input";
}

}  // namespace

int main(int argc, char** argv) {
  using namespace cohort::conformance;
  CLI::App app{"Runs the recorded cases of a directory against the library", "cohort_conformance"};
  std::string directory = default_directory();
  RunOptions options;
  double seconds = 60;
  app.add_option("directory", directory, "holds cases/*.json or *.json")
      ->capture_default_str()
      ->check(CLI::ExistingDirectory);
  app.add_option("--filter", options.filter, "only cases whose id contains TEXT");
  app.add_option("--deadline", seconds, "seconds that one case may take")
      ->check(CLI::PositiveNumber);
  std::string workers = "processes";
  app.add_option("--workers", workers, "what the workers of a case with several are")
      ->check(CLI::IsMember({"processes", "threads"}))
      ->capture_default_str();
  const std::map<std::string, cohort::GroupBackend> backends = {
      {"automatic", cohort::GroupBackend::automatic},
      {"shared_memory", cohort::GroupBackend::shared_memory},
      {"tcp", cohort::GroupBackend::tcp}};
  app.add_option("--backend", options.workers.backend, "what carries the values of such workers")
      ->transform(CLI::Transformer(backends));
  int socket = -1;  // of the runner that has started this process as a worker
  app.add_option("--worker", socket)->group("");
  bool is_server = false;  // of the cluster of a case
  app.add_flag("--server", is_server)->group("");
  CLI11_PARSE(app, argc, argv);
  if (is_server) return strategy::serve_as_process();
  options.workers.are_threads = workers == "threads";
  options.deadline = std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
  options.workers.deadline = options.deadline * 9 / 10;
  if (socket >= 0) {
    cohort::set_log_level(cohort::LogLevel::off);
    return strategy::work_as_process(socket);
  }
  std::cout << "cases of " << directory << std::endl;
  cohort::set_log_level(cohort::LogLevel::off);
  try {
    return run_cases(read_cases(directory), options, std::cout).failed == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << "cohort_conformance: " << error.what() << '\n';
    return 1;
  }
}
