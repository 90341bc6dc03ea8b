// SPDX-License-Identifier: Apache-2.0
// cohort_conformance DIRECTORY: see tests/conformance/README.md.
#include <CLI/CLI.hpp>
#include <iostream>

#include "cohort/core/log.h"
#include "tests/conformance/runner.h"

int main(int argc, char** argv) {
  using namespace cohort::conformance;
  CLI::App app{"Runs the recorded cases of a directory against the library", "cohort_conformance"};
  std::string directory;
  RunOptions options;
  double seconds = 60;
  app.add_option("directory", directory, "holds cases/*.json or *.json")
      ->required()
      ->check(CLI::ExistingDirectory);
  app.add_option("--filter", options.filter, "only cases whose id contains TEXT");
  app.add_option("--deadline", seconds, "seconds that one case may take")
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  options.deadline = std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
  cohort::set_log_level(cohort::LogLevel::off);
  try {
    return run_cases(read_cases(directory), options, std::cout).failed == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << "cohort_conformance: " << error.what() << '\n';
    return 1;
  }
}
