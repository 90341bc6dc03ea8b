// SPDX-License-Identifier: Apache-2.0
// Tests of the runner: it must fail for wrong outcomes, and say why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <csignal>
#include <fstream>
#include <mutex>
#include <sstream>

#include "tests/conformance/comparison.h"
#include "tests/conformance/isolation.h"
#include "tests/conformance/runner.h"
#include "tests/conformance/values.h"

namespace cohort::conformance {
namespace {

using ::testing::HasSubstr;

class ConformanceRunner : public ::testing::Test {
 protected:
  // A case of kind dataset over range(3), with `more` merged into it.
  static Json range_case(const Json& more = Json::object()) {
    Json test_case = Json::parse(R"({
      "id": "a", "kind": "dataset", "pipeline": [{"op": "range", "args": [3]}],
      "expect": {"spec": ["int64", []], "cardinality": 3, "elements":
        [["int64", [], 0], ["int64", [], 1], ["int64", [], 2], "end"]}})");
    test_case.merge_patch(more);
    return test_case;
  }

  static Json parsed(const char* text) { return Json::parse(text); }
  static Verdict run(const Json& json) { return run_case({json.value("id", ""), json, ""}); }
  static Verdict run(const char* more) { return run(range_case(parsed(more))); }

  static void expect_failure(const Verdict& verdict, const std::string& text) {
    EXPECT_EQ(verdict.status, Status::failed);
    EXPECT_THAT(verdict.text, HasSubstr(text));
  }

  static std::string output_of(const std::vector<Json>& cases, const RunOptions& options = {}) {
    std::vector<Case> all;
    for (const Json& json : cases) all.push_back({json["id"], json, ""});
    std::ostringstream out;
    run_cases(all, options, out);
    return out.str();
  }
};

TEST_F(ConformanceRunner, PassesACaseThatIsAsExpected) {
  const Verdict verdict = run(range_case());
  EXPECT_EQ(verdict.status, Status::passed) << verdict.text;
}

TEST_F(ConformanceRunner, FailsAWrongElementAndNamesIt) {
  Json test_case = range_case();
  test_case["expect"]["elements"][1][2] = 7;
  expect_failure(run(test_case), R"(elements[1]: expected ["int64",[],7])");
}

TEST_F(ConformanceRunner, FailsAWrongDtypeShapeCardinalityAndSpec) {
  expect_failure(run(R"({"pipeline": [{"op": "range", "args": [3], "dtype": "int32"}]})"), "spec");
  expect_failure(run(R"({"expect": {"cardinality": 4}})"), "cardinality: expected 4");
  expect_failure(run(R"({"pipeline": [{"op": "range", "args": [4]}]})"), "got 4");
}

TEST_F(ConformanceRunner, FailsAMissingBuildErrorAndOneOfAnotherCode) {
  expect_failure(run(R"({"expect": {"build_error": {"error": "NotFound"}}})"), "build_error");
  expect_failure(run(R"({"pipeline": [{"op": "range", "args": [1, 2, 0]}],
                         "expect": {"build_error": {"error": "NotFound"}}})"),
                 "InvalidArgument");
}

TEST_F(ConformanceRunner, FailsABuildErrorNobodyExpects) {
  expect_failure(run(R"({"pipeline": [{"op": "range", "args": [1, 2, 0]}]})"), "build_error");
}

TEST_F(ConformanceRunner, FailsWhatItDoesNotKnow) {
  expect_failure(run(R"({"pipeline": [{"op": "rang", "args": [3]}]})"), "unknown source op 'rang'");
  expect_failure(run(R"({"pipeline": [{"op": "range", "args": [3], "ste": 1}]})"), "field 'ste'");
  expect_failure(run(R"({"pipeline": [{"op": "range", "args": [3]}, {"op": "turn"}]})"), "'turn'");
  expect_failure(run(R"({"pipeline": [{"op": "range", "args": [3]}, {"op": "map", "fn": "f"}]})"),
                 "unknown map function 'f'");
  expect_failure(run(R"({"kind": "datasets"})"), "unknown kind");
  expect_failure(run(R"({"checks": [{"check": "sorted"}]})"), "unknown check 'sorted'");
  expect_failure(run(R"({"expect": {"colour": "red"}})"), "colour: expected \"red\"");
  expect_failure(run(R"({"script": [["jump", "a"]]})"), "unknown script command 'jump'");
}

TEST_F(ConformanceRunner, FailsAnUnknownOpEvenWhereAnErrorIsExpected) {
  expect_failure(run(R"({"pipeline": [{"op": "rang"}],
                         "expect": {"build_error": {"error": "InvalidArgument"}}})"),
                 "unknown source op");
}

TEST_F(ConformanceRunner, SkipsOnlyWhatNeedsRaggedOrSparse) {
  EXPECT_EQ(run(R"({"features_needed": ["sparse"]})").status, Status::skipped);
  EXPECT_EQ(run(R"({"features_needed": ["csv"]})").status, Status::passed);
  expect_failure(run(R"({"pipeline": [{"op": "ragged_dense_sparse", "n": 2}]})"), "ragged");
}

TEST_F(ConformanceRunner, RequiresWhatIsRecommendedInPlaceOfWhatWasRecorded) {
  Json quirk = range_case(parsed(R"({"quirk": true, "expect": {"cardinality": 9}})"));
  expect_failure(run(quirk), "cardinality");
  quirk["recommended"] = range_case()["expect"];
  EXPECT_EQ(run(quirk).status, Status::passed);
}

TEST_F(ConformanceRunner, IgnoresFieldsOfTheCaseItDoesNotKnow) {
  EXPECT_EQ(run(R"({"colour": "red"})").status, Status::passed);
}

TEST_F(ConformanceRunner, RunsScripts) {
  const Verdict verdict = run(R"({
    "script": [["iter", "a"], ["read", "a", 2], ["save", "a", "s"], ["drain", "a"],
               ["restore", "a", "s"], ["next", "a"], ["opt", "a"], ["restore", "a", "s"],
               ["count_steps", "a"], ["iter", "b"], ["sum_all", "b"], ["drop", "b"]],
    "expect": {"elements": null, "out": [null, [["int64", [], 0], ["int64", [], 1]], null,
      [["int64", [], 2], "end"], null, ["int64", [], 2],
      {"optional": null, "get_value": {"error": "InvalidArgument"}}, null, ["int64", [], 1],
      null, {"sum": 3.0, "steps": 3}, null]}})");
  EXPECT_EQ(verdict.status, Status::passed) << verdict.text;
}

TEST_F(ConformanceRunner, ComparesUnorderedItemsAsAMultiset) {
  const Json test_case = parsed(R"({"order_free": true})");
  const Json expected = parsed(R"({"elements": {"multiset": [1, 2, 2], "then": ["end"]}})");
  EXPECT_TRUE(
      differences(test_case, expected, parsed(R"({"elements": [2, 1, 2, "end"]})")).empty());
  EXPECT_FALSE(
      differences(test_case, expected, parsed(R"({"elements": [2, 1, 1, "end"]})")).empty());
  EXPECT_FALSE(differences(test_case, expected, parsed(R"({"elements": [2, 1, 2]})")).empty());
}

TEST_F(ConformanceRunner, CountsItemsThatAreUnstable) {
  const Json expected = parsed(R"({"out": [{"any": 2, "then": ["end"]}]})");
  EXPECT_TRUE(differences({}, expected, parsed(R"({"out": [[5, 6, "end"]]})")).empty());
  EXPECT_FALSE(differences({}, expected, parsed(R"({"out": [[5, "end", "end"]]})")).empty());
}

TEST_F(ConformanceRunner, ComparesErrorsByTheirCodeAlone) {
  const Json expected = parsed(R"({"elements": [{"error": "DataLoss", "tf": "DataLossError"}]})");
  const Json got = parsed(R"({"elements": [{"error": "DataLoss", "message": "x"}]})");
  EXPECT_TRUE(differences({}, expected, got).empty());
}

TEST_F(ConformanceRunner, TellsABoolFromANumber) {
  EXPECT_FALSE(
      differences({}, parsed(R"({"wrapped": true})"), parsed(R"({"wrapped": 1})")).empty());
}

TEST_F(ConformanceRunner, ComparesEveryWorker) {
  const Json expected = parsed(R"({"workers": [{"cardinality": 1}, {"cardinality": 2}]})");
  EXPECT_TRUE(differences({}, expected, expected).empty());
  const Json got = parsed(R"({"workers": [{"cardinality": 1}, {"cardinality": 3}]})");
  EXPECT_EQ(differences({}, expected, got).at(0).where, "worker 1 cardinality");
}

TEST_F(ConformanceRunner, HoldsNumbersToThePrecisionOfTheirDtype) {
  EXPECT_EQ(canonical(parsed(R"(["float32", [1], [0.1]])")),
            json_of(tensor_of(parsed(R"(["float32", [1], [0.1]])"))));
  EXPECT_NE(canonical(parsed(R"(["float64", [], 0.1])")),
            canonical(parsed(R"(["float64", [], 0.1000001])")));
  EXPECT_EQ(json_of(tensor_of(parsed(R"(["int64", [], 9223372036854775807])")))[2], INT64_MAX);
  EXPECT_EQ(json_of(tensor_of(parsed(R"(["float32", [2], ["nan", "-inf"]])")))[2],
            parsed(R"(["nan", "-inf"])"));
  EXPECT_EQ(json_of(tensor_of(parsed(R"(["string", [1], [{"hex": "00ff"}]])")))[2],
            parsed(R"([{"hex": "00ff"}])"));
}

// --- checks -------------------------------------------------------------------------------------

struct CheckRow {
  const char* check;
  const char* holds;
  const char* fails;
};

class ConformanceCheck : public ::testing::TestWithParam<CheckRow> {
 protected:
  // An outcome with int64 scalars, both as `elements` and as two streams of `out`.
  static Json outcome(const char* values) {
    Json items = Json::array();
    for (const Json& value : Json::parse(values))
      items.push_back(Json::array({"int64", Json::array(), value}));
    const auto half = static_cast<std::ptrdiff_t>(items.size() / 2);
    return {{"elements", items},
            {"out",
             {Json(std::vector<Json>(items.begin(), items.begin() + half)),
              Json(std::vector<Json>(items.begin() + half, items.end()))}}};
  }
  static bool holds(const char* values) {
    const Json test_case = {{"checks", {Json::parse(GetParam().check)}}};
    return failed_checks(test_case, outcome(values), outcome("[0, 1]")).empty();
  }
};

TEST_P(ConformanceCheck, HoldsAndFails) {
  EXPECT_TRUE(holds(GetParam().holds));
  EXPECT_FALSE(holds(GetParam().fails));
}

INSTANTIATE_TEST_SUITE_P(
    All, ConformanceCheck,
    ::testing::Values(
        CheckRow{R"({"check": "same", "of": [0, 1]})", "[1, 2, 1, 2]", "[1, 2, 2, 1]"},
        CheckRow{R"({"check": "different", "of": [0, 1]})", "[1, 2, 2, 1]", "[1, 2, 1, 2]"},
        CheckRow{R"({"check": "window", "buffer": 2})", "[1, 2, 0]", "[2, 1, 0]"},
        CheckRow{R"({"check": "window", "buffer": 1, "epoch": 2})", "[0, 1, 0, 1]", "[0, 1, 2, 3]"},
        CheckRow{R"({"check": "permutation_blocks", "block": 2})", "[1, 0, 0, 1]", "[1, 0, 1, 1]"},
        CheckRow{R"({"check": "permutation", "of": [0, 1], "n": 3})", "[2, 0, 1]", "[2, 0, 3]"},
        CheckRow{R"({"check": "halves_same"})", "[3, 4, 3, 4]", "[3, 4, 4, 3]"},
        CheckRow{R"({"check": "halves_differ"})", "[3, 4, 4, 3]", "[3, 4, 3, 4]"},
        CheckRow{R"({"check": "not_sorted"})", "[0, 2, 1]", "[0, 1, 2]"},
        CheckRow{R"({"check": "rebuild_same"})", "[0, 1]", "[1, 0]"}));

// --- many cases ---------------------------------------------------------------------------------

TEST_F(ConformanceRunner, PrintsFailuresAndClosesWithTotals) {
  const std::string out =
      output_of({range_case(), range_case({{"id", "b"}, {"expect", {{"cardinality", 4}}}}),
                 range_case({{"id", "c"}, {"features_needed", {"ragged"}}})});
  EXPECT_THAT(out, HasSubstr("FAIL b cardinality: expected 4\n  got 3\n"));
  EXPECT_THAT(out, HasSubstr("\n1 passed, 1 failed, 1 skipped\n"));
}

TEST_F(ConformanceRunner, RunsTheCasesThatTheFilterNames) {
  EXPECT_EQ(output_of({range_case(), range_case({{"id", "b"}})}, {.filter = "b"}),
            "1 passed, 0 failed, 0 skipped\n");
}

TEST_F(ConformanceRunner, FailsACaseWithoutEnd) {
  const std::string out = output_of(
      {range_case(parsed(R"({"pipeline": [{"op": "range", "args": [3]}, {"op": "repeat"}]})"))});
  EXPECT_THAT(out, HasSubstr("no end after"));
}

TEST(ConformanceIsolation, GoesOnBehindWhatHangsOrCrashes) {
  std::vector<std::string> seen;
  const auto work = [](std::size_t index) -> std::string {
    std::mutex mutex;
    std::unique_lock lock(mutex);
    if (index == 1) std::condition_variable().wait(lock, [] { return false; });
    if (index == 2) std::raise(SIGKILL);
    return "result " + std::to_string(index);
  };
  run_isolated(4, std::chrono::seconds(2), work, [&](std::size_t index, const Ended& ended) {
    ASSERT_EQ(index, seen.size());
    seen.push_back(ended.how == Ended::How::hang ? "hang" : ended.text);
  });
  EXPECT_THAT(seen, ::testing::ElementsAre("result 0", "hang", "killed by signal 9", "result 3"));
}

TEST_F(ConformanceRunner, ReadsTheFilesOfADirectoryAndFailsWhatIsNoCase) {
  const auto directory = std::filesystem::path(::testing::TempDir()) / "conformance_cases";
  std::filesystem::create_directories(directory);
  std::ofstream(directory / "a.json") << Json::array({range_case()});
  std::ofstream(directory / "b.json") << "[";
  const std::vector<Case> cases = read_cases(directory);
  ASSERT_EQ(cases.size(), 2U);
  EXPECT_EQ(cases[0].id, "a");
  EXPECT_EQ(run_case(cases[1]).status, Status::failed);
}

}  // namespace
}  // namespace cohort::conformance
