// SPDX-License-Identifier: Apache-2.0
#include "cohort/cluster/cluster_resolver.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <vector>

#include "cohort/cluster/resolvers/resolving.h"
#include "cohort/core/error.h"
#include "cohort/core/log.h"

namespace cohort {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kCluster[] = R"("cluster": {"ps": ["p0:1", "p1:1"], "worker": ["w0:1", "w1:1"]})";

// Sets TF_CONFIG for one test.
class TfConfig : public ::testing::Test {
 protected:
  void TearDown() override { ::unsetenv("TF_CONFIG"); }

  static void set(const std::string& text) { ::setenv("TF_CONFIG", text.c_str(), 1); }
  static void set_task(const std::string& task) {
    set("{" + std::string(kCluster) + ", \"task\": " + task + "}");
  }
  static Error error_of(const std::function<void()>& query) {
    try {
      query();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      return error;
    }
    return Error(ErrorCode::unknown, "nothing thrown");
  }

  TfConfigResolver tf_config;
};

TEST_F(TfConfig, GivesClusterAndTask) {
  set_task(R"({"type": "worker", "index": 1})");
  EXPECT_EQ(tf_config.cluster_spec().num_tasks("ps"), 2);
  EXPECT_EQ(tf_config.task(), (TaskId{"worker", 1}));
  EXPECT_EQ(tf_config.master(), "w1:1");
}

TEST_F(TfConfig, IsEmptyWhenUnset) {
  EXPECT_FALSE(bool(tf_config.cluster_spec()));
  EXPECT_EQ(tf_config.task(), std::nullopt);
  EXPECT_EQ(tf_config.master(), "");
  EXPECT_FALSE(tf_config.is_server());
}

TEST_F(TfConfig, IsReadAgainAtEveryQuery) {
  set_task(R"({"type": "worker", "index": 1})");
  EXPECT_EQ(tf_config.task_id(), 1);
  set_task(R"({"type": "ps", "index": 0})");
  EXPECT_EQ(tf_config.task(), (TaskId{"ps", 0}));
}

TEST_F(TfConfig, MakesServersOfPsAndWorkersOnly) {
  for (const std::string type : {"ps", "worker", "chief", "evaluator"}) {
    set_task("{\"type\": \"" + type + "\", \"index\": 0}");
    EXPECT_EQ(tf_config.is_server(), type == "ps" || type == "worker") << type;
  }
}

TEST_F(TfConfig, CastsTheTypeAsPythonDoes) {
  const std::pair<const char*, const char*> rows[] = {
      {"123456", "123456"}, {"null", "None"},           {"true", "True"},
      {"1.5", "1.5"},       {"[1, \"a\"]", "[1, 'a']"}, {"{\"a\": null}", "{'a': None}"}};
  for (const auto& [json, text] : rows) {
    set_task(std::string("{\"type\": ") + json + "}");
    EXPECT_EQ(tf_config.task_type(), text);
  }
}

TEST_F(TfConfig, CastsTheIndexAsPythonDoes) {
  const std::pair<const char*, std::int64_t> rows[] = {
      {"\"1\"", 1}, {"\"07\"", 7}, {"\" 2 \"", 2}, {"1.5", 1}, {"-1.5", -1},
      {"true", 1},  {"false", 0},  {"1e2", 100},   {"-3", -3}, {"\"1_0\"", 10}};
  for (const auto& [json, value] : rows) {
    set_task(std::string("{\"index\": ") + json + "}");
    EXPECT_EQ(tf_config.task_id(), value) << json;
  }
}

// true became task 1 without a warning.
TEST_F(TfConfig, WarnsOnceOfAnIndexThatIsConverted) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  for (const char* index : {"true", "1.5", "1", "1.0", "\"1\""}) {
    set_task(std::string(R"({"type": "worker", "index": )") + index + "}");
    EXPECT_EQ(tf_config.task_id(), 1);
    EXPECT_EQ(tf_config.task_id(), 1);
  }
  set_log_sink(nullptr);
  EXPECT_THAT(lines, ElementsAre(AllOf(HasSubstr("task.index"), HasSubstr("got true, "),
                                       HasSubstr("taken for 1 as tf does")),
                                 HasSubstr("got 1.5, ")));
}

TEST_F(TfConfig, RefusesAnIndexThatIsNotANumber) {
  const std::pair<const char*, ErrorCause> rows[] = {
      {"\"x\"", ErrorCause::none},      {"\"1.5\"", ErrorCause::none},
      {"1e300", ErrorCause::none},      {"18446744073709551615", ErrorCause::none},
      {"null", ErrorCause::wrong_type}, {"[1]", ErrorCause::wrong_type},
      {"{}", ErrorCause::wrong_type}};
  for (const auto& [json, cause] : rows) {
    set_task(std::string("{\"type\": \"ps\", \"index\": ") + json + "}");
    const Error error = error_of([&] { tf_config.task_id(); });
    EXPECT_EQ(error.cause(), cause) << json;
    EXPECT_THAT(error.message(),
                AllOf(HasSubstr("TF_CONFIG key task.index"), HasSubstr("write \"index\": 0")));
  }
}

// The message was `got "None"`, a text that is not in TF_CONFIG.
TEST_F(TfConfig, QuotesAnIndexAsItIsWritten) {
  for (const char* json : {"null", "[true]", "{}"}) {
    set_task(std::string(R"({"type": "ps", "index": )") + json + "}");
    EXPECT_THAT(error_of([&] { tf_config.task_id(); }).message(),
                HasSubstr(std::string("got \"") + json + "\"; "));
  }
}

// The queries behave as tf's: such a task has no type and would count as the coordinator.
TEST_F(TfConfig, ValidatesWhatTheQueriesPassOver) {
  const std::pair<std::string, const char*> rows[] = {
      {"[1]", "a JSON object for TF_CONFIG, got \"[1]\""},
      {R"({"task": [1]})", "a JSON object for TF_CONFIG key task, got \"[1]\""},
      {R"({"task": "worker"})", "a JSON object for TF_CONFIG key task"},
      {R"({"task": {"index": 0}})", "a type beside the index in TF_CONFIG key task"},
      {R"({"task": {"job": "ps", "index": 0}})", "got {\"index\":0,\"job\":\"ps\"}; set it as"}};
  for (const auto& [text, words] : rows) {
    set(text);
    EXPECT_THAT(error_of([&] { tf_config.is_server(); }).message(), HasSubstr(words)) << text;
  }
}

// A task of {"taks": …} counted as the coordinator, and one of {"clutser": …} had no cluster.
TEST_F(TfConfig, NamesTheKeyThatAMisspelledOneMayMean) {
  const std::pair<std::string, const char*> rows[] = {
      {R"({"taks": {"type": "ps", "index": 0}})",
       "expected TF_CONFIG with the keys cluster, task, rpc_layer, session_master, got \"taks\"; "
       "correct its name; did you mean 'task'?"},
      {R"({"clutser": {}})", "got \"clutser\"; correct its name; did you mean 'cluster'?"},
      {R"({"task": {"typ": "ps", "index": 0}})",
       "expected TF_CONFIG key task with the keys type, index, got \"typ\"; correct its name; did "
       "you mean 'type'?"},
      {R"({"task": {"type": "ps", "indx": 0}})", "did you mean 'index'?"}};
  for (const auto& [text, words] : rows) {
    set(text);
    EXPECT_THAT(error_of([&] { tf_config.is_server(); }).message(), HasSubstr(words)) << text;
  }
}

// A worker of such a TFJob was taken for the coordinator of an empty cluster.
TEST_F(TfConfig, RefusesTheClusterOfATFJobThatNamesOnlySomeTasks) {
  set(R"({"sparseCluster": {"worker": {"1": "w1:1"}, "ps": ["p0:1"]}, )"
      R"("task": {"type": "worker", "index": 1}})");
  for (const auto& query : std::vector<std::function<void()>>{[&] { tf_config.cluster_spec(); },
                                                              [&] { tf_config.is_server(); }}) {
    EXPECT_THAT(error_of(query).message(),
                AllOf(HasSubstr("expected TF_CONFIG key cluster with all tasks, got sparseCluster"),
                      HasSubstr("leave enableDynamicWorker out of the TFJob")));
  }
}

// Programs for other systems read further keys, as "environment".
TEST_F(TfConfig, IgnoresOtherKeys) {
  for (const char* text :
       {R"({"environment": "cloud"})", R"({"cluster": {}, "clusters": 2, "task": {"types": 1, )"
                                       R"("type": "chief"}, "job": {}})"}) {
    set(text);
    EXPECT_FALSE(tf_config.is_server()) << text;
  }
}

TEST_F(TfConfig, ValidatesTasksThatMayCoordinate) {
  for (const char* text : {"{}", R"({"task": {}})", R"({"task": {"type": "chief"}})"}) {
    set(text);
    EXPECT_FALSE(tf_config.is_server()) << text;
  }
}

TEST_F(TfConfig, RefusesANegativeOwnTask) {
  set_task(R"({"type": "ps", "index": -1})");
  EXPECT_THAT(error_of([&] { tf_config.task(); }).message(), HasSubstr("got -1 for job \"ps\""));
}

TEST_F(TfConfig, SaysWhatIsWrongWithTextThatIsNotJson) {
  for (const char* text : {"", "{", "{\"cluster\": {\"worker\": [\"w:1\",]}}", "worker"}) {
    set(text);
    for (const auto& query : std::vector<std::function<void()>>{
             [&] { tf_config.cluster_spec(); }, [&] { tf_config.task_type(); },
             [&] { tf_config.task_id(); }, [&] { tf_config.rpc_layer(); },
             [&] { tf_config.master(); }, [&] { tf_config.num_accelerators(); }}) {
      const Error error = error_of(query);
      EXPECT_EQ(error.cause(), ErrorCause::none);
      EXPECT_THAT(error.message(), AllOf(HasSubstr("expected a JSON object for TF_CONFIG"),
                                         HasSubstr(std::string("got \"") + text + "\""),
                                         HasSubstr("set it as {\"cluster\"")));
    }
  }
}

struct WrongType {
  std::string text;
  std::string key;
};

TEST_F(TfConfig, NamesTheKeyOfAValueOfTheWrongType) {
  const WrongType rows[] = {{"3", "TF_CONFIG"},
                            {"null", "TF_CONFIG"},
                            {"[\"cluster\"]", "TF_CONFIG"},
                            {R"({"cluster": null})", "TF_CONFIG key cluster"},
                            {R"({"cluster": "abc"})", "TF_CONFIG key cluster"},
                            {R"({"cluster": {"ps": "p:1"}})", "TF_CONFIG key cluster.ps"},
                            {R"({"cluster": {"ps": [1]}})", "TF_CONFIG key cluster.ps[0]"}};
  for (const WrongType& row : rows) {
    set(row.text);
    const Error error = error_of([&] { tf_config.cluster_spec(); });
    EXPECT_EQ(error.cause(), ErrorCause::wrong_type) << row.text;
    EXPECT_THAT(error.message(), HasSubstr("for " + row.key + ", got "));
  }
}

TEST_F(TfConfig, NamesTheKeyOfOtherWrongTypes) {
  set(R"({"task": 3})");
  EXPECT_THAT(error_of([&] { tf_config.task_type(); }).message(),
              HasSubstr("expected a JSON object for TF_CONFIG key task, got \"3\""));
  set(R"({"rpc_layer": 5})");
  EXPECT_THAT(error_of([&] { tf_config.rpc_layer(); }).message(),
              HasSubstr("expected a text for TF_CONFIG key rpc_layer, got \"5\""));
  set(R"({"session_master": []})");
  EXPECT_THAT(error_of([&] { tf_config.master(); }).message(), HasSubstr("key session_master"));
}

// As with Python's `in`, a list or a string without the key counts as an object without it.
TEST_F(TfConfig, TakesListsAndTextsForObjectsWithoutKeys) {
  for (const char* text : {"[]", "\"abc\"", "[1]", R"({"task": []})", R"({"task": "x"})"}) {
    set(text);
    EXPECT_FALSE(bool(tf_config.cluster_spec())) << text;
    EXPECT_EQ(tf_config.task_type(), std::nullopt) << text;
  }
  set(R"({"task": ["type"]})");
  EXPECT_EQ(error_of([&] { tf_config.task_type(); }).cause(), ErrorCause::wrong_type);
}

TEST_F(TfConfig, WantsATaskInAClusterOfSeveral) {
  set("{" + std::string(kCluster) + "}");
  EXPECT_THAT(error_of([&] { tf_config.master(); }).message(),
              HasSubstr("keys task.type and task.index, got no type and no index"));
  set_task(R"({"type": "ps"})");
  EXPECT_THAT(error_of([&] { tf_config.master(); }).message(),
              HasSubstr("got \"ps\" and no index"));
  EXPECT_EQ(tf_config.master({.task_id = 1}), "p1:1");
}

TEST_F(TfConfig, NeedsNoTaskInAClusterOfOne) {
  set(R"({"cluster": {"worker": ["w:1"]}})");
  EXPECT_EQ(tf_config.master(), "");
  // One task, but not the first: tf counts up to the largest index.
  set(R"({"cluster": {"worker": {"1": "w:1"}}, "task": {"type": "worker", "index": 1}})");
  EXPECT_EQ(tf_config.master(), "w:1");
}

TEST_F(TfConfig, PutsTheLayerBeforeTheAddress) {
  set("{" + std::string(kCluster) +
      R"(, "rpc_layer": "grpc", "task": {"type": "ps", "index": 0}})");
  EXPECT_EQ(tf_config.master(), "grpc://p0:1");
  EXPECT_EQ(tf_config.master({.rpc_layer = "http"}), "http://p0:1");
  EXPECT_EQ(tf_config.master({.rpc_layer = ""}), "p0:1");
  tf_config.set_rpc_layer("ssl");
  EXPECT_EQ(tf_config.master(), "ssl://p0:1");
  tf_config.set_rpc_layer(std::nullopt);
  EXPECT_EQ(tf_config.rpc_layer(), "grpc");
}

TEST_F(TfConfig, PrefersTheSessionMaster) {
  set("{" + std::string(kCluster) + R"(, "session_master": "s:9", "rpc_layer": "grpc"})");
  EXPECT_EQ(tf_config.master({.rpc_layer = "x"}), "s:9");
}

TEST_F(TfConfig, StandsBelowOptionsAndSetters) {
  set_task(R"({"type": "worker", "index": 1})");
  TfConfigResolver resolver({.task_type = "ps", .task_id = 0, .environment = "gce"});
  EXPECT_EQ(resolver.task(), (TaskId{"ps", 0}));
  EXPECT_EQ(resolver.environment(), "gce");
  resolver.set_task_type("worker");
  resolver.set_task_id(0);
  EXPECT_EQ(resolver.task(), (TaskId{"worker", 0}));
  resolver.set_task_type(std::nullopt);
  resolver.set_task_id(std::nullopt);
  EXPECT_EQ(resolver.task(), (TaskId{"worker", 1}));
}

TEST_F(TfConfig, CountsAcceleratorsOfOneTask) {
  set_task(R"({"type": "worker", "index": 1})");
  const TfConfigResolver resolver({.devices = [] {
    return std::vector<std::string>{"/job:worker/task:1/device:GPU:0", "/job:worker/task:10/GPU:0",
                                    "/job:worker/task:1/device:CPU:0", "/job:ps/task:1/TPU:0",
                                    "/job:worker/task:1/device:GPU:1"};
  }});
  using Counts = std::map<std::string, int>;
  EXPECT_EQ(resolver.num_accelerators(), (Counts{{"GPU", 2}}));
  EXPECT_EQ(resolver.num_accelerators({.task_type = "ps"}), (Counts{{"TPU", 1}}));
  EXPECT_EQ(resolver.num_accelerators({.task_id = 0}), Counts{});
  EXPECT_THROW(resolver.num_accelerators({.task_id = 10}), Error);
}

// It threw, though an evaluator need not be in the cluster.
TEST_F(TfConfig, CountsAcceleratorsOfAnEvaluatorOutsideOfTheCluster) {
  set_task(R"({"type": "evaluator", "index": 0})");
  const TfConfigResolver resolver(
      {.devices = [] { return std::vector<std::string>{"/device:GPU:0"}; }});
  EXPECT_EQ(resolver.num_accelerators(), (std::map<std::string, int>{{"GPU", 1}}));
}

TEST_F(TfConfig, CountsAllAcceleratorsWithoutATask) {
  const TfConfigResolver resolver({.devices = [] {
    return std::vector<std::string>{"/device:GPU:0", "/job:x/task:0/GPU:0"};
  }});
  EXPECT_EQ(resolver.num_accelerators(), (std::map<std::string, int>{{"GPU", 2}}));
}

TEST_F(TfConfig, AsksThisProcessForItsGpusByDefault) {
  std::map<std::string, int> expected;
  if (const auto gpus = internal::local_devices(); !gpus.empty()) {
    expected["GPU"] = static_cast<int>(gpus.size());
  }
  EXPECT_EQ(tf_config.num_accelerators(), expected);
}

}  // namespace
}  // namespace cohort
