// SPDX-License-Identifier: Apache-2.0
#include "cohort/cli/status_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

namespace cohort::cli {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using State = rpc::ProbeResult::State;

constexpr auto kHuge = std::numeric_limits<std::uint64_t>::max();

TaskStatus answering(const std::string& task, const std::string& address = "127.0.0.1:4000") {
  TaskStatus status{task, address, {.state = State::answers, .health = {}, .reason = {}}};
  status.probe.health.incarnation = 0xabcdef0123456789;
  status.probe.health.uptime = std::chrono::seconds(90);
  return status;
}

TaskStatus missing(const std::string& task, State state) {
  return {task, "127.0.0.1:4001", {.state = state, .health = {}, .reason = "it is so"}};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(StatusReport, TheExitCodeSaysWhetherAllAnswer) {
  EXPECT_EQ(exit_code_of({{answering("ps:0"), answering("worker:0")}, {}}), 0);
  EXPECT_EQ(exit_code_of({{answering("ps:0")}, {"a chief"}}), 0);
  for (const State state :
       {State::nobody_listens, State::no_answer, State::stranger, State::name_not_resolved})
    EXPECT_EQ(exit_code_of({{answering("ps:0"), missing("worker:0", state)}, {}}), 69);
}

TEST(StatusReport, JsonHasAllThatATaskCounts) {
  TaskStatus worker = answering("worker:0");
  TaskHealth& health = worker.probe.health;
  health.closures_run = 1;
  health.closures_failed = 2;
  health.closures_queued = 3;
  health.closures_running = 4;
  health.pushes_applied = 5;
  health.pushes_dropped = 6;
  health.pulled_bytes = 7;
  health.pushed_bytes = 8;
  health.connections_lost = 9;
  health.broken_frames = 10;
  health.protocol_errors = 11;
  health.variables = 12;
  health.variable_bytes = 13;
  health.rows_per_second = 14.5;
  health.by_variable = {{"v", 15, 16, 17, 18, 19, 20, {{21, 22}}}};
  health.since_last_end = std::chrono::milliseconds(1500);
  health.last_error = TaskError{.code = ErrorCode::unavailable,
                                .cause = ErrorCause::peer_lost,
                                .age = std::chrono::seconds(2),
                                .origin = "ps:0",
                                .text = "it went"};
  const json expected = json::parse(R"({"schema": 2, "exit_code": 0, "missing": [],
    "server_skew": null, "tasks": [{
    "task": "worker:0", "address": "127.0.0.1:4000", "state": "answers", "reason": null, "member": null,
    "health": {
      "incarnation": "12379813738877118345", "uptime_seconds": 90.0,
      "closures": {"run": 1, "failed": 2, "queued": 3, "running": 4},
      "pushes": {"applied": 5, "dropped": 6}, "bytes": {"pulled": 7, "pushed": 8},
      "stored": {"variables": 12, "bytes": 13}, "rows_per_second": 14.5,
      "variables": [{"name": "v", "pulls": 15, "pushes": 16, "pulled_bytes": 17,
                     "pushed_bytes": 18, "pulled_rows": 19, "pushed_rows": 20,
                     "hot_rows": [{"row": 21, "times": 22}]}],
      "connections_lost": 9, "broken_frames": 10, "protocol_errors": 11, "seconds_since_last_end": 1.5,
      "last_error": {"code": "unavailable", "cause": "peer_lost", "origin": "ps:0",
                     "seconds_ago": 2.0, "text": "it went"},
      "coordinator": null}}]})");
  EXPECT_EQ(json::parse(json_of({{worker}, {}})), expected);
}

TEST(StatusReport, JsonSaysHowUnevenlyServersAreUsed) {
  const auto ps = [](const std::string& task, std::uint64_t pulled, std::uint64_t pushed) {
    TaskStatus server = answering(task);
    server.probe.health.pulled_bytes = pulled;
    server.probe.health.pushed_bytes = pushed;
    return server;
  };
  const auto skew = [](std::vector<TaskStatus> tasks) {
    return json::parse(json_of({std::move(tasks), {}}))["server_skew"];
  };
  EXPECT_EQ(skew({ps("ps:0", 10, 20), ps("ps:1", 4, 6), ps("worker:0", 999, 0)}), 1.5);
  EXPECT_EQ(skew({ps("ps:0", 10, 0), ps("ps:1", 0, 10)}), 1.0);
  EXPECT_EQ(skew({ps("ps:0", 0, 0), ps("ps:1", 0, 0)}), json());
  EXPECT_EQ(skew({ps("ps:0", 10, 0), missing("ps:1", State::no_answer)}), json());
}

TEST(StatusReport, JsonHasTheCoordinatorsView) {
  TaskStatus chief = answering("chief:0");
  chief.probe.health.coordinator =
      CoordinatorHealth{1, 2, 3, 4, 5, 6, 7, {{true, 8, 9}, {false, 0, 1}}};
  const json expected = json::parse(R"({"queued": 1, "in_flight": 2, "completed": 3, "failed": 4,
    "cancelled": 5, "retries": 6, "traces": 7, "workers": [
      {"is_ready": true, "closures": 8, "times_lost": 9},
      {"is_ready": false, "closures": 0, "times_lost": 1}]})");
  EXPECT_EQ(json::parse(json_of({{chief}, {}}))["tasks"][0]["health"]["coordinator"], expected);
}

TEST(StatusReport, JsonSaysWhyATaskDoesNotAnswer) {
  const json report = json::parse(json_of({{missing("", State::nobody_listens)}, {"a chief"}}));
  EXPECT_EQ(report["exit_code"], 69);
  EXPECT_EQ(report["missing"], json({"a chief"}));
  EXPECT_EQ(report["tasks"][0], json::parse(R"({"task": null, "address": "127.0.0.1:4001",
    "state": "nobody_listens", "reason": "it is so", "health": null, "member": null})"));
}

TEST(StatusReport, TheTableFitsAHundredColumns) {
  TaskStatus large = answering("worker:123456", std::string(80, 'h') + ":65535");
  TaskHealth& health = large.probe.health;
  health.closures_run = health.closures_failed = health.closures_queued = kHuge;
  health.pushes_applied = health.pushes_dropped = 999'949;
  health.pulled_bytes = 9'999;
  health.pushed_bytes = 999'499'999;
  health.connections_lost = 9'999;
  health.uptime = std::chrono::hours(24 * 9999);
  health.since_last_end = std::chrono::hours(47);
  health.last_error = TaskError{.text = std::string(300, 'x') + " " + std::string(90, 'y')};
  health.coordinator =
      CoordinatorHealth{kHuge, kHuge, kHuge, kHuge, kHuge, kHuge, kHuge, {{false, 0, kHuge}}};
  TaskStatus unknown = large;
  unknown.task.clear();
  const std::string table = table_of(
      {{large, unknown, missing("ps:0", State::stranger)}, {std::string(150, 'z') + " and so on"}});
  for (const std::string& line : lines_of(table)) EXPECT_LE(line.size(), 100U) << line;
}

TEST(StatusReport, TheTableIsReadByPeople) {
  TaskStatus chief = answering("chief:0");
  chief.probe.health.coordinator =
      CoordinatorHealth{1, 2, 12'345, 4, 5, 6, 7, {{true, 8, 0}, {false, 0, 1}}};
  TaskStatus ps = answering("ps:0");
  ps.probe.health.pushes_applied = 1'234'567;
  ps.probe.health.last_error = TaskError{.code = ErrorCode::not_found,
                                         .cause = ErrorCause::handle_lost,
                                         .age = std::chrono::seconds(3),
                                         .origin = "",
                                         .text = "no\nvariable"};
  const std::string table = table_of({{chief, ps, missing("worker:1", State::nobody_listens),
                                       missing("worker:2", State::name_not_resolved)},
                                      {"a chief"}});
  EXPECT_EQ(
      table,
      "TASK       ADDRESS                       UP OPEN  RUN FAIL PUSHES DROP"
      " PULL PUSH LOST   END  START\n"
      "chief:0    127.0.0.1:4000               90s    3  12k    4      -    0"
      "    0    0    0     - abcdef\n"
      "ps:0       127.0.0.1:4000               90s    -    -    -   1.2M    0"
      "    0    0    0     - abcdef\n"
      "worker:1   127.0.0.1:4001  nobody listens\n"
      "worker:2   127.0.0.1:4001  name not resolved\n"
      "\n"
      "coordinator: 1 queued, 2 in flight, 12345 completed, 4 failed, 5 cancelled, 6 retries, 7 "
      "traces\n"
      "  worker:1 is away, lost 1 time\n"
      "last error of ps:0, 3.0s ago: not_found (handle_lost): no variable\n"
      "worker:1: nobody listens: it is so\n"
      "worker:2: name not resolved: it is so\n"
      "missing: a chief\n");
}

TaskStatus member(const std::string& task, const TaskProgress& progress) {
  return status_of(task, "127.0.0.1:4000",
                   {.state = collective::MemberProbe::State::answers,
                    .status = {.task = task,
                               .incarnation = 0xabcdef0123456789,
                               .uptime = std::chrono::seconds(90),
                               .group = 2,
                               .workers = 3,
                               .progress = progress},
                    .reason = {}});
}

const TaskProgress kSomeProgress = {.steps = 12'345,
                                    .steps_per_second = 98.76,
                                    .since_last_step = std::chrono::milliseconds(500),
                                    .program_step = 120,
                                    .program_steps = 500,
                                    .values = {{"accuracy", 0.75}, {"loss", 0.3125}}};

TEST(StatusReport, WorkersThatTrainTogetherHaveColumnsOfTheirOwn) {
  const ClusterStatus status{{member("worker:0", kSomeProgress), member("worker:1", {}),
                              missing("worker:2", State::no_answer)},
                             {}};
  EXPECT_EQ(table_of(status),
            "TASK       ADDRESS                       UP STEPS  PER S  LAST GROUP  START\n"
            "worker:0   127.0.0.1:4000               90s   12k   98.8  0.5s     3 abcdef\n"
            "worker:1   127.0.0.1:4000               90s     0    0.0     -     3 abcdef\n"
            "worker:2   127.0.0.1:4001  no answer\n"
            "\n"
            "worker:0: step 120 of 500, accuracy 0.75, loss 0.3125\n"
            "worker:2: no answer: it is so\n");
  EXPECT_EQ(exit_code_of(status), 69);
}

TEST(StatusReport, JsonHasWhatAMemberTells) {
  const json report = json::parse(json_of({{member("worker:0", kSomeProgress)}, {}}));
  const json& task = report["tasks"][0];
  EXPECT_EQ(task["health"]["uptime_seconds"], 90.0);
  EXPECT_EQ(task["member"], json::parse(R"({"steps": 12345, "steps_per_second": 98.76,
    "seconds_since_last_step": 0.5, "group": 2, "workers": 3, "is_forming": false,
    "program": {"step": 120, "steps": 500, "values": {"accuracy": 0.75, "loss": 0.3125}}})"));
}

// JSON has no NaN; the line was none.
TEST(StatusReport, JsonHasALossThatIsNoNumber) {
  TaskProgress progress = kSomeProgress;
  progress.values = {{"loss", std::numeric_limits<double>::quiet_NaN()}};
  const json report = json::parse(json_of({{member("worker:0", progress)}, {}}));
  EXPECT_EQ(report["tasks"][0]["member"]["program"]["values"]["loss"], "nan");
  EXPECT_TRUE(json::parse(json_of({{member("worker:0", {})}, {}}))["tasks"][0]["member"]["program"]
                  .is_null());
}

}  // namespace
}  // namespace cohort::cli
