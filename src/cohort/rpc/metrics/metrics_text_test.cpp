// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/metrics/metrics_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "cohort/rpc/metrics/http_answer.h"
#include "cohort/testing/metrics_parser.h"

namespace cohort::rpc::internal {
namespace {

using ::testing::HasSubstr;
using testing::MetricsParser;
using ::testing::StartsWith;

// Each counter has another value.
TaskHealth health_of_a_server() {
  TaskHealth health;
  health.uptime = std::chrono::milliseconds(1'500);
  health.closures_run = 1;
  health.closures_failed = 2;
  health.pushes_applied = 3;
  health.pushes_dropped = 4;
  health.pulled_bytes = 5;
  health.pushed_bytes = 6;
  health.rows_per_second = 0.25;
  health.variables = 7;
  health.variable_bytes = 18'000'000'000'000'000'000U;
  health.by_variable = {{.name = "quote\" back\\slash\nline",
                         .pulls = 8,
                         .pushes = 9,
                         .pulled_bytes = 10,
                         .pushed_bytes = 11,
                         .pulled_rows = 12,
                         .pushed_rows = 13,
                         .hot_rows = {{.row = 99, .times = 14}, {.row = 98, .times = 15}}},
                        {.name = "other"}};
  return health;
}

TEST(MetricsText, HasEveryCounterOfAServer) {
  const MetricsParser metrics(metrics_text(health_of_a_server(), "ps:0"));
  const auto value = [&](const std::string& name, MetricsParser::Labels labels = {}) {
    labels.emplace("task", "ps:0");
    return metrics.value("cohort_" + name, labels);
  };
  EXPECT_EQ(value("uptime_seconds"), 1.5);
  EXPECT_EQ(value("closures_total", {{"result", "ok"}}), 1);
  EXPECT_EQ(value("closures_total", {{"result", "failed"}}), 2);
  EXPECT_EQ(value("pushes_total", {{"result", "applied"}}), 3);
  EXPECT_EQ(value("pushes_total", {{"result", "dropped"}}), 4);
  EXPECT_EQ(value("pulled_bytes_total"), 5);
  EXPECT_EQ(value("pushed_bytes_total"), 6);
  EXPECT_EQ(value("rows_per_second"), 0.25);
  EXPECT_EQ(value("variables"), 7);
  EXPECT_EQ(value("variable_bytes"), 18e18);
  const std::string name = "quote\" back\\slash\nline";
  EXPECT_EQ(value("variable_pulls_total", {{"variable", name}}), 8);
  EXPECT_EQ(value("variable_pushes_total", {{"variable", name}}), 9);
  EXPECT_EQ(value("variable_pulled_bytes_total", {{"variable", name}}), 10);
  EXPECT_EQ(value("variable_pushed_bytes_total", {{"variable", name}}), 11);
  EXPECT_EQ(value("variable_pulled_rows_total", {{"variable", name}}), 12);
  EXPECT_EQ(value("variable_pushed_rows_total", {{"variable", name}}), 13);
  EXPECT_EQ(value("variable_hot_row", {{"variable", name}, {"row", "99"}}), 14);
  EXPECT_EQ(value("variable_hot_row", {{"variable", name}, {"row", "98"}}), 15);
  EXPECT_EQ(value("variable_pulls_total", {{"variable", "other"}}), 0);
  EXPECT_EQ(metrics.kind("cohort_pulled_bytes_total"), "counter");
  EXPECT_EQ(metrics.kind("cohort_variables"), "gauge");
}

TEST(MetricsText, HasTheCoordinatorsView) {
  TaskHealth health;
  health.coordinator = CoordinatorHealth{.queued = 1,
                                         .in_flight = 2,
                                         .completed = 3,
                                         .failed = 4,
                                         .cancelled = 5,
                                         .retries = 6,
                                         .traces = 7,
                                         .workers = {{.is_ready = true}, {.times_lost = 8}}};
  const MetricsParser metrics(metrics_text(health, "chief:0"));
  const auto value = [&](const std::string& name, MetricsParser::Labels labels = {}) {
    labels.emplace("task", "chief:0");
    return metrics.value("cohort_coordinator_" + name, labels);
  };
  EXPECT_EQ(value("closures", {{"state", "queued"}}), 1);
  EXPECT_EQ(value("closures", {{"state", "in_flight"}}), 2);
  EXPECT_EQ(value("closures_total", {{"result", "ok"}}), 3);
  EXPECT_EQ(value("closures_total", {{"result", "failed"}}), 4);
  EXPECT_EQ(value("closures_total", {{"result", "cancelled"}}), 5);
  EXPECT_EQ(value("retries_total"), 6);
  EXPECT_EQ(value("traces_total"), 7);
  EXPECT_EQ(value("worker_ready", {{"worker", "0"}}), 1);
  EXPECT_EQ(value("worker_ready", {{"worker", "1"}}), 0);
  EXPECT_EQ(value("worker_lost_total", {{"worker", "1"}}), 8);
}

// The parser of the tests refuses what the specification refuses.
TEST(MetricsText, TheParserIsStrict) {
  for (const char* bad :
       {"a 1", "1a 1\n", "a{b=\"c} 1\n", "a{b=\"\\x\"} 1\n", "a{b=\"c\" d=\"e\"} 1\n",
        "a{b=\"c\",b=\"d\"} 1\n", "a 1\na 2\n", "a 1\nb 1\na{c=\"d\"} 1\n", "a one\n",
        "a 1\n# TYPE a gauge\n", "# TYPE a number\n", "# TYPE a gauge\n# TYPE a gauge\n",
        "# TYPE a counter\na -1\n", "a{b:c=\"d\"} 1\n"}) {
    EXPECT_THROW(MetricsParser{bad}, std::runtime_error) << bad;
  }
  const MetricsParser good(
      "# HELP a b\\n c\n# TYPE a gauge\na{b=\"\\\"\\\\\\n\",} -1.5e3\n\n# note\nb +Inf\n");
  EXPECT_EQ(good.value("a", {{"b", "\"\\\n"}}), -1500);
  EXPECT_EQ(good.num_samples(), 2U);
}

TEST(MetricsText, PrometheusOwnParserReadsIt) {
  const std::string python = "python3 -c 'import prometheus_client.parser' 2>/dev/null";
  if (std::system(python.c_str()) != 0)
    GTEST_SKIP() << "python3 has no prometheus_client (pip install prometheus-client)";
  const std::string count =
      "python3 -c 'import sys\nfrom prometheus_client.parser import "
      "text_string_to_metric_families\n"
      "n = sum(len(f.samples) for f in text_string_to_metric_families(sys.stdin.read()))\n"
      "sys.exit(0 if n == int(sys.argv[1]) else 1)' ";
  const std::string text = metrics_text(health_of_a_server(), "ps:0");
  const std::size_t samples = MetricsParser(text).num_samples();
  FILE* const pipe = popen((count + std::to_string(samples)).c_str(), "w");
  ASSERT_NE(pipe, nullptr);
  std::fwrite(text.data(), 1, text.size(), pipe);
  EXPECT_EQ(pclose(pipe), 0);
}

TEST(HttpAnswer, IsThePageOrSaysWhatWasExpected) {
  const auto answer = [](const char* head) {
    return http_answer(head, [] { return "cohort_x 1\n"; });
  };
  const std::string page = answer("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_THAT(page, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(page, HasSubstr("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  EXPECT_THAT(page, HasSubstr("\r\nContent-Length: 11\r\n"));
  EXPECT_TRUE(page.ends_with("\r\n\r\ncohort_x 1\n"));
  EXPECT_THAT(answer("GET /metrics?x=1 HTTP/1.0\r\n\r\n"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer("GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(answer("GET /metrics/x HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(answer("PUT /metrics HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 405"));
  for (const char* bad :
       {"GET /metrics\r\n\r\n", "GET /metrics HTTP/2\r\n\r\n", "\r\n\r\n", "GET \r\n"})
    EXPECT_THAT(answer(bad), StartsWith("HTTP/1.1 400")) << bad;
}

}  // namespace
}  // namespace cohort::rpc::internal
