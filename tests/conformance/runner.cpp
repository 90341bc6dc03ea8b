// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/runner.h"

#include <algorithm>
#include <fstream>

#include "cohort/core/error.h"
#include "tests/conformance/comparison.h"
#include "tests/conformance/isolation.h"
#include "tests/conformance/kinds.h"
#include "tests/conformance/strategy_cluster.h"
#include "tests/conformance/strategy_runner.h"

namespace cohort::conformance {
namespace {

constexpr std::size_t kMostDifferences = 2;

void read_file(const std::filesystem::path& file, std::vector<Case>& cases) {
  const std::string name = file.filename().string();
  std::ifstream stream(file, std::ios::binary);
  const Json content = Json::parse(stream, nullptr, false);
  if (!content.is_array()) {
    cases.push_back({name, {}, "expected a JSON array of cases", name});
    return;
  }
  for (const Json& json : content) {
    const std::string id = json.is_object() ? json.value("id", "") : "";
    if (id.empty()) {
      cases.push_back({name, {}, "a case without id: " + brief(json, 120), name});
    } else {
      cases.push_back({id, json, "", name});
    }
  }
}

// Whether the case needs a feature that the library does not have.
bool may_skip(const Json& test_case) {
  const Json features = test_case.value("features_needed", Json::array());
  return std::any_of(features.begin(), features.end(), [](const Json& feature) {
    return feature == "ragged" || feature == "sparse";
  });
}

const Json& expected_of(const Json& test_case) {
  if (test_case.contains("recommended")) return test_case["recommended"];
  if (test_case.value("tf_crashes", false)) {
    throw CaseFault("a case whose original crashes has no 'recommended'");
  }
  return member(test_case, "expect");
}

Verdict compared(const Json& test_case) {
  const auto kind = kinds().find(member(test_case, "kind").get<std::string>());
  if (kind == kinds().end()) throw CaseFault("unknown kind " + test_case["kind"].dump());
  const Json& expected = expected_of(test_case);
  const Json got = kind->second(test_case);
  std::vector<Difference> found = differences(test_case, expected, got);
  if (!expected.contains("build_error") && found.empty()) {
    const Json again = needs_second_run(test_case) ? kind->second(test_case) : Json();
    found = failed_checks(test_case, got, again);
  }
  if (found.empty()) return {};
  Verdict verdict{Status::failed, ""};
  for (std::size_t i = 0; i < std::min(found.size(), kMostDifferences); ++i) {
    verdict.text += (i == 0 ? "" : "\n  ") + found[i].where + ": expected " + found[i].expected +
                    "\n  got " + found[i].got;
  }
  return verdict;
}

Verdict verdict_of(const std::string& text) {
  const Json json = Json::parse(text);
  return {json.at(0).get<Status>(), json.at(1).get<std::string>()};
}

std::string text_of(const Verdict& verdict) {
  return Json::array({verdict.status, verdict.text})
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

Verdict verdict_of(const Ended& ended, std::chrono::milliseconds deadline) {
  if (ended.how == Ended::How::result) return verdict_of(ended.text);
  if (ended.how == Ended::How::crash) return {Status::failed, "the process " + ended.text};
  return {Status::failed, "no end within " + std::to_string(deadline.count()) + " ms"};
}

}  // namespace

std::vector<Case> read_cases(const std::filesystem::path& directory) {
  const std::filesystem::path inner = directory / "cases";
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::is_directory(inner) ? inner : directory)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  if (files.empty()) throw CaseFault("no *.json in " + directory.string() + " or its cases/");
  std::sort(files.begin(), files.end());
  std::vector<Case> cases;
  for (const std::filesystem::path& file : files) read_file(file, cases);
  return cases;
}

Verdict run_case(const Case& test_case, const WorkerOptions& workers) {
  if (!test_case.fault.empty()) return {Status::failed, test_case.fault};
  try {
    if (strategy::is_strategy_case(test_case.json)) {
      return strategy::run_strategy_case(test_case.json, workers);
    }
    if (may_skip(test_case.json)) return {Status::skipped, "needs ragged or sparse elements"};
    return compared(test_case.json);
  } catch (const std::exception& error) {
    return {Status::failed, error.what()};
  }
}

Totals run_cases(const std::vector<Case>& cases, const RunOptions& options, std::ostream& out) {
  std::vector<const Case*> chosen;
  for (const Case& test_case : cases) {
    if (test_case.id.find(options.filter) != std::string::npos) chosen.push_back(&test_case);
  }
  if (chosen.empty()) throw CaseFault("no case has '" + options.filter + "' in its id");
  Totals totals;
  run_isolated(
      chosen.size(), options.deadline,
      [&](std::size_t index) {
        std::string text = text_of(run_case(*chosen[index], options.workers));
        if (index + 1 == chosen.size()) strategy::forget_clusters();
        return text;
      },
      [&](std::size_t index, const Ended& ended) {
        const Verdict verdict = verdict_of(ended, options.deadline);
        totals.passed += verdict.status == Status::passed ? 1 : 0;
        totals.skipped += verdict.status == Status::skipped ? 1 : 0;
        totals.failed += verdict.status == Status::failed ? 1 : 0;
        if (verdict.status == Status::passed) return;
        out << (verdict.status == Status::failed ? "FAIL " : "SKIP ") << chosen[index]->id << ' '
            << verdict.text << std::endl;
      });
  out << totals.passed << " passed, " << totals.failed << " failed, " << totals.skipped
      << " skipped" << std::endl;
  return totals;
}

}  // namespace cohort::conformance
