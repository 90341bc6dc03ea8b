// SPDX-License-Identifier: Apache-2.0
// Runs recorded cases against the library and says which differ (FORMAT.md beside the cases).
#pragma once

#include <chrono>
#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include "tests/conformance/json.h"

namespace cohort::conformance {

enum class Status { passed, failed, skipped };

struct Verdict {
  Status status = Status::passed;
  std::string text;  // why, unless it passed
};

// One case as a file has it. `fault` is set in place of the case where the file cannot be read.
struct Case {
  std::string id;
  Json json;
  std::string fault;
};

struct RunOptions {
  std::string filter;  // cases whose id contains it; empty: all
  std::chrono::milliseconds deadline = std::chrono::minutes(1);  // for each case
};

struct Totals {
  std::int64_t passed = 0;
  std::int64_t failed = 0;
  std::int64_t skipped = 0;
};

// Of DIRECTORY/cases/*.json, or of DIRECTORY/*.json where there is no such folder; in the order of
// file names. A fault when there is no file.
std::vector<Case> read_cases(const std::filesystem::path& directory);
// In this process, without a deadline.
Verdict run_case(const Case& test_case);
// Each case for itself (isolation.h); failures, and last the totals, go to `out`.
Totals run_cases(const std::vector<Case>& cases, const RunOptions& options, std::ostream& out);

}  // namespace cohort::conformance
