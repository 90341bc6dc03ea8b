// SPDX-License-Identifier: Apache-2.0
// Runs recorded cases against the library and reports differences (FORMAT.md beside the cases).
#pragma once

#include <chrono>
#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include "cohort/collective/group.h"
#include "tests/conformance/json.h"

namespace cohort::conformance {

enum class Status { passed, failed, skipped };

struct Verdict {
  Status status = Status::passed;
  std::string text;  // the reason, unless the case passed
};

// One case of a file. If the file cannot be read, `fault` is set instead of the case.
struct Case {
  std::string id;
  Json json;
  std::string fault;
  std::string file = {};  // its name, such as "run.json"
};

// How the workers of a strategy case with several run.
struct WorkerOptions {
  bool are_threads = false;                // of the process of the case; else each is a process
  std::string program = "/proc/self/exe";  // of these processes: cohort_conformance
  GroupBackend backend = GroupBackend::automatic;
  // After which the workers that have not ended are named, and killed. Shorter than that of cases.
  std::chrono::milliseconds deadline = std::chrono::seconds(55);
};

struct RunOptions {
  std::string filter;  // runs the cases whose id contains it; empty: all
  std::chrono::milliseconds deadline = std::chrono::minutes(1);  // for each case
  WorkerOptions workers = {};
};

struct Totals {
  std::int64_t passed = 0;
  std::int64_t failed = 0;
  std::int64_t skipped = 0;
};

// Reads DIRECTORY/cases/*.json, or DIRECTORY/*.json if there is no such folder, in the order of
// file names. Throws a CaseFault if there is no file.
std::vector<Case> read_cases(const std::filesystem::path& directory);
// Runs a case in this process, without a deadline.
Verdict run_case(const Case& test_case, const WorkerOptions& workers = {});
// Runs each case in isolation (isolation.h). Writes failures and skipped cases to `out`, and then
// the totals.
Totals run_cases(const std::vector<Case>& cases, const RunOptions& options, std::ostream& out);

}  // namespace cohort::conformance
