// SPDX-License-Identifier: Apache-2.0
// Tests of the runner of strategy cases: it must fail for wrong outcomes, and say why.
#include "tests/conformance/strategy_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "cohort/strategy/strategy.h"
#include "tests/conformance/strategy_outcome.h"
#include "tests/conformance/strategy_tensors.h"

namespace cohort::conformance::strategy {
namespace {

using ::testing::HasSubstr;

class StrategyRunner : public ::testing::Test {
 protected:
  static Verdict run(const char* steps, const char* more = "{}") {
    Json content = {{"id", "a"}, {"strategy", {{"kind", "mirrored"}, {"replicas", 2}}}};
    content["steps"] = Json::parse(steps);
    content.merge_patch(Json::parse(more));
    return run_case({"a", content, ""});
  }
  static void expect_passed(const Verdict& verdict) {
    EXPECT_EQ(verdict.status, Status::passed) << verdict.text;
  }
  static void expect_failure(const Verdict& verdict, const std::string& text) {
    EXPECT_EQ(verdict.status, Status::failed);
    EXPECT_THAT(verdict.text, HasSubstr(text));
  }
};

// --- steps
// ----------------------------------------------------------------------------------------

TEST_F(StrategyRunner, RunsABodyInEachReplica) {
  expect_passed(
      run(R"([{"do": "run", "body": [{"do": "emit", "label": "id", "value": {"rid": "i32"}}],
      "return": {"add": [{"rid": "i32"}, {"t": "i32", "s": [], "v": [1]}]},
      "expect": {"per_replica": [{"t": "i32", "s": [], "v": [1]}, {"t": "i32", "s": [], "v": [2]}]},
      "emits": {"id": {"r0": [{"t": "i32", "s": [], "v": [0]}], "r1": [{"t": "i32", "s": [], "v": [1]}]}}}])"));
}

TEST_F(StrategyRunner, FailsAWrongResultAndNamesTheStep) {
  expect_failure(
      run(R"([{"do": "probe"}, {"do": "eval", "value": {"int": 1}, "expect": {"int": 2}}])"),
      "step 1");
  expect_failure(run(R"([{"do": "run", "return": {"rid": "i32"},
      "expect": {"per_replica": [{"t": "i32", "s": [], "v": [0]}, {"t": "i32", "s": [], "v": [0]}]}}])"),
                 "expected");
}

TEST_F(StrategyRunner, FailsWrongAndMissingEmits) {
  const char* const steps = R"([{"do": "run", "body": [{"do": "emit", "label": "a", "value": "x"}],
                               "return": null, "emits": {"a": {"r0": ["x"]}}}])";
  expect_failure(run(steps), "emits of 'a'");
  expect_failure(run(R"([{"do": "emit", "label": "a", "value": "x", "emits": {}}])"),
                 "emitted 'a'");
}

TEST_F(StrategyRunner, FailsWhatItDoesNotKnow) {
  expect_failure(run(R"([{"do": "fly"}])"), "unknown step 'fly'");
  expect_failure(run(R"([{"do": "eval", "value": {"fly": 1}}])"), "unknown expression");
  expect_failure(run(R"([{"do": "eval", "value": 1, "wings": 2}])"), "unknown field 'wings'");
  expect_failure(run(R"([{"do": "enter", "what": "fog", "as": "f"}])"), "unknown context");
  expect_failure(run(R"([{"do": "eval", "value": {"ref": "nobody"}}])"), "nobody");
  expect_failure(run(R"([{"do": "read", "var": 3}])"), "not as expected");
  expect_failure(run("[]", R"({"strategy": {"kind": "tpu"}})"), "unknown kind of strategy");
}

TEST_F(StrategyRunner, FailsWhatItDoesNotKnowInReplicasAndWhereErrorsAreExpected) {
  expect_failure(
      run(R"([{"do": "run", "body": [{"do": "try", "label": "t", "body": [{"do": "fly"}]}],
                        "return": null}])"),
      "unknown step 'fly'");
  expect_failure(
      run(R"([{"do": "fly", "error": {"kind": "ValueError", "code": "InvalidArgument"}}])"),
      "unknown step 'fly'");
}

TEST_F(StrategyRunner, SkipsOnlyMergesInCompiledFunctions) {
  const char* const nested = R"([{"do": "run", "compiled": true, "return": null,
      "body": [{"do": "call", "compiled": true, "body": [{"do": "merge_call", "args": [], "body": []}]}]}])";
  EXPECT_EQ(run(nested).status, Status::skipped);
  EXPECT_THAT(run(nested).text, HasSubstr("compiled"));
  expect_passed(run(R"([{"do": "run", "compiled": true, "return": {"float": 0.5},
                        "expect": {"t": "f32", "s": [], "v": [0.5]}}])"));
}

TEST_F(StrategyRunner, LeavesTheContextsOfAFailedCase) {
  expect_failure(
      run(R"([{"do": "enter", "what": "scope", "strategy": "S", "as": "h"}, {"do": "fly"}])"),
      "fly");
  EXPECT_FALSE(has_strategy());
  expect_failure(run(R"([{"do": "set_strategy", "to": "S"}, {"do": "fly"}])"), "fly");
  EXPECT_FALSE(has_strategy());
}

// --- errors
// ---------------------------------------------------------------------------------------

TEST_F(StrategyRunner, ComparesErrorsByCodeAndWords) {
  const auto raising = [](const char* kind, const char* expected) {
    return run(
        (std::string(R"([{"do": "run", "return": null, "body": [{"do": "raise", "kind": ")") +
         kind + R"(", "msg": "Boom"}], "error": )" + expected + "}]")
            .c_str());
  };
  const char* const value_error = R"({"kind": "ValueError", "code": "InvalidArgument"})";
  expect_passed(raising("ValueError", value_error));
  expect_failure(raising("RuntimeError", value_error), "expected error");
  expect_failure(raising("UserError", value_error), "expected error");
  expect_passed(raising("UserError", R"({"kind": "UserError", "words": ["boom"]})"));
  expect_failure(raising("ValueError", R"({"kind": "UserError"})"), "expected error");
  expect_passed(raising("RuntimeError",
                        R"({"kind": "ValueError", "accept": ["OpError:FailedPrecondition"]})"));
  expect_failure(raising("ValueError", R"({"kind": "ValueError", "words": ["bang"]})"), "Boom");
  expect_failure(raising("ValueError", R"({"kind": "WildError"})"), "unknown kind of error");
  expect_failure(run(R"([{"do": "probe", "error": {"kind": "ValueError"}}])"), "expected error");
}

TEST_F(StrategyRunner, ComparesTheWordsOfAnErrorThatAReplicaCatches) {
  const auto catching = [](const std::string& word) {
    const std::string caught = R"([{"error": {"kind": "KeyError", "words": [")" + word + R"("]}}])";
    return run((R"([{"do": "run", "return": null, "body": [{"do": "try", "label": "t",
                    "body": [{"do": "raise", "kind": "KeyError", "msg": "Boom"}]}],
                    "emits": {"t": {"r0": )" +
                caught + R"(, "r1": )" + caught + "}}}]")
                   .c_str());
  };
  expect_passed(catching("boom"));
  expect_failure(catching("bang"), "Boom");
}

TEST_F(StrategyRunner, FailsAnUnexpectedError) {
  expect_failure(run(R"([{"do": "raise", "kind": "ValueError", "msg": "Boom"}])"),
                 "expected success");
}

// FORMAT.md, 2: an error of a merge may be thrown in each replica instead of from run().
TEST_F(StrategyRunner, AcceptsAnErrorOfAMergeThatEveryReplicaSaw) {
  const Json step = {{"error", {{"kind", "ValueError"}}}};
  const Json seen = {{"error", {{"user", false}, {"code", "InvalidArgument"}, {"message", ""}}}};
  const Outcome both{{}, {}, {{"t", {{"r0", {seen}}, {"r1", {seen}}}}}};
  EXPECT_EQ(difference(step, both, 0), "");
  const Outcome one{{}, {}, {{"t", {{"r0", {seen}}, {"r1", {"ok"}}}}}};
  EXPECT_NE(difference(step, one, 0), "");
  EXPECT_NE(difference(step, Outcome{}, 0), "");
}

TEST_F(StrategyRunner, PassesARecommendedOutcomeAsWellAsTheRecordedOne) {
  const Json step = {{"expect", {{"int", 1}}}, {"recommended", {{"expect", {{"int", 2}}}}}};
  EXPECT_EQ(difference(step, {{{"int", 1}}, {}}, 0), "");
  EXPECT_EQ(difference(step, {{{"int", 2}}, {}}, 0), "");
  EXPECT_NE(difference(step, {{{"int", 3}}, {}}, 0), "");
  const Json error = {{"error", {{"kind", "ValueError"}}}, {"recommended", {{"no_error", true}}}};
  EXPECT_EQ(difference(error, {{}, {}}, 0), "");
}

// --- values
// ---------------------------------------------------------------------------------------

struct ValueRow {
  const char* expected;
  const char* got;
  bool is_equal;
};

class StrategyValues : public ::testing::TestWithParam<ValueRow> {};

TEST_P(StrategyValues, AreCompared) {
  const ValueRow& row = GetParam();
  EXPECT_EQ(is_value_equal(Json::parse(row.expected), Json::parse(row.got), 1e-6), row.is_equal)
      << row.expected << " and " << row.got;
}

INSTANTIATE_TEST_SUITE_P(
    All, StrategyValues,
    ::testing::Values(
        ValueRow{R"({"t":"f32","s":[1],"v":[0.1]})", R"({"t":"f32","s":[1],"v":[0.10000000149]})",
                 true},
        ValueRow{R"({"t":"f32","s":[1],"v":["nan"]})", R"({"t":"f32","s":[1],"v":["nan"]})", true},
        ValueRow{R"({"t":"f32","s":[1],"v":[1.0]})", R"({"t":"f64","s":[1],"v":[1.0]})", false},
        ValueRow{R"({"t":"f32","s":[1],"v":[1.0]})", R"({"t":"f32","s":[],"v":[1.0]})", false},
        ValueRow{R"({"t":"f32","s":[],"v":[1.0]})", R"({"t":"f32","s":[],"v":[1.1]})", false},
        ValueRow{R"({"t":"f32","s":[],"v":[1.0]})", R"({"float":1.0})", false},
        ValueRow{R"({"t":"i64","s":[],"v":[1]})", R"({"t":"i64","s":[],"v":[2]})", false},
        ValueRow{R"({"per_replica":[{"int":1}]})", R"({"int":1})", true},
        ValueRow{R"({"per_replica":["a","b"]})", R"({"mirrored":["a","b"]})", false},
        ValueRow{R"({"list":["a"]})", R"({"tuple":["a"]})", false},
        ValueRow{R"({"int":1})", R"({"float":1.0})", false}, ValueRow{"1", "true", false},
        ValueRow{R"({"token":true})", "null", true}, ValueRow{R"(["CPU:0"])", R"("CPU:0")", true},
        ValueRow{R"({"ref":"v"})", R"({"variable":[],"names":["v"]})", true},
        ValueRow{R"({"ref":"w"})", R"({"variable":[],"names":["v"]})", false},
        ValueRow{R"({"variable":["a"]})", R"({"variable":["a","b"],"names":[]})", false},
        ValueRow{
            R"({"slices":{"values":{"t":"f32","s":[2],"v":[1,2]},"indices":{"t":"i64","s":[2],"v":[1,1]},"shape":[2]}})",
            R"({"slices":{"values":{"t":"f32","s":[1],"v":[3]},"indices":{"t":"i64","s":[1],"v":[1]},"shape":[2]}})",
            true}));

TEST(StrategyTensors, AreWrittenAsTheyAreRead) {
  for (const char* text :
       {R"({"t":"f16","s":[2],"v":[0.5,"-inf"]})", R"({"t":"bf16","s":[],"v":[1.5]})",
        R"({"t":"i64","s":[1],"v":[9223372036854775807]})", R"({"t":"u8","s":[1,2],"v":[0,255]})",
        R"({"t":"bool","s":[2],"v":[true,false]})", R"({"t":"str","s":[1],"v":["a"]})",
        R"({"t":"f64","s":[0,3],"v":[]})"}) {
    EXPECT_EQ(write_tensor(read_tensor(Json::parse(text))), Json::parse(text));
  }
  EXPECT_THROW(read_tensor(Json::parse(R"({"t":"f32","s":[2],"v":[1]})")), CaseFault);
  EXPECT_THROW(read_tensor(Json::parse(R"({"t":"f31","s":[],"v":[1]})")), CaseFault);
}

// --- the queue's simulated threads
// ----------------------------------------------------------------

class QueueSteps : public StrategyRunner {
 protected:
  // Acts on a new queue.
  static Verdict act(const char* acts) {
    Json steps = Json::parse(acts);
    for (Json& step : steps) step["do"] = "q";
    steps.insert(steps.begin(), Json{{"do", "queue"}, {"as", "q"}});
    return run(steps.dump().c_str(), R"({"strategy": {"kind": "default"}})");
  }
};

TEST_F(QueueSteps, FailWrongExpectations) {
  expect_failure(act(R"([{"act": "put", "closure": "a"}, {"act": "get", "expect": "b"}])"),
                 "\"b\"");
  expect_failure(act(R"([{"act": "put", "closure": "a"}, {"act": "done", "expect": true}])"),
                 "true");
  expect_failure(act(R"([{"act": "put", "closure": "a", "error": {"kind": "ValueError"}}])"),
                 "expected error");
  expect_failure(act(R"([{"act": "dance"}])"), "unknown act");
  expect_failure(act(R"([{"act": "put", "closure": "a"}, {"act": "join"}])"), "block for ever");
  expect_failure(act(R"([{"act": "later", "delay": 1, "acts": [{"act": "finished"}], "thread": "t"},
              {"act": "wait_thread", "of": "t", "expect": true}])"),
                 "another thread");
}

TEST_F(QueueSteps, WaitForOtherThreads) {
  expect_passed(act(R"([{"act": "get", "timeout": 0.1, "expect": null}])"));
  expect_passed(
      act(R"([{"act": "later", "delay": 1, "acts": [{"act": "put", "closure": "a"}], "thread": "t"},
              {"act": "get", "expect": "a"}, {"act": "wait_thread", "of": "t", "expect": true}])"));
}

// tf's put/wait lock: a closure that is put during a join is not part of it.
TEST_F(QueueSteps, BlockAPutWhileAnotherThreadJoins) {
  expect_passed(act(R"([{"act": "put", "closure": "a"}, {"act": "get", "expect": "a"},
      {"act": "later", "delay": 1, "acts": [{"act": "put", "closure": "b"}], "thread": "putter"},
      {"act": "later", "delay": 2, "acts": [{"act": "get", "timeout": 0.1, "expect": null},
                                            {"act": "finished"}], "thread": "worker"},
      {"act": "join"}, {"act": "wait_thread", "of": "putter", "expect": true},
      {"act": "get", "expect": "b"}])"));
}

TEST_F(QueueSteps, LetAnEndNameAnyClosureInFlight) {
  expect_passed(act(R"([{"act": "put", "closure": "a"}, {"act": "put", "closure": "b"},
      {"act": "get", "expect": "a"}, {"act": "get", "expect": "b"}, {"act": "finished"},
      {"act": "put_back", "closure": "a"}, {"act": "get", "expect": "a"}, {"act": "finished"},
      {"act": "join"}])"));
}

// --- files
// ----------------------------------------------------------------------------------------

// Regression: a case of pipelines with a field `steps` was run as one of strategies.
TEST(StrategyFiles, HaveCasesWithStepsButWithoutAKind) {
  EXPECT_TRUE(is_strategy_case({{"id", "a"}, {"steps", Json::array()}}));
  EXPECT_FALSE(is_strategy_case({{"id", "a"}, {"kind", "distribute"}, {"steps", 3}}));
  EXPECT_FALSE(is_strategy_case({{"id", "a"}}));
}

}  // namespace
}  // namespace cohort::conformance::strategy
