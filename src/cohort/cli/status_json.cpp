// SPDX-License-Identifier: Apache-2.0
// The line of `cohort status --json`.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "cohort/cli/status_report.h"

namespace cohort::cli {
namespace {

using nlohmann::json;

constexpr int kSchema = 2;

double seconds_of(Duration duration) { return std::chrono::duration<double>(duration).count(); }

json last_error_of(const TaskHealth& health) {
  if (!health.last_error) return nullptr;
  const TaskError& error = *health.last_error;
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? json() : json(text);
  };
  return {{"code", name_of(error.code)},
          {"cause", name_of(error.cause)},
          {"seconds_ago", seconds_of(error.age)},
          {"origin", text_or_null(error.origin)},
          {"text", text_or_null(error.text)}};
}

json coordinator_of(const CoordinatorHealth& coordinator) {
  json workers = json::array();
  for (const WorkerHealth& worker : coordinator.workers) {
    workers.push_back({{"is_ready", worker.is_ready},
                       {"closures", worker.closures},
                       {"times_lost", worker.times_lost}});
  }
  return {{"queued", coordinator.queued},       {"in_flight", coordinator.in_flight},
          {"completed", coordinator.completed}, {"failed", coordinator.failed},
          {"cancelled", coordinator.cancelled}, {"retries", coordinator.retries},
          {"traces", coordinator.traces},       {"workers", workers}};
}

json variables_of(const TaskHealth& health) {
  json all = json::array();
  for (const VariableHealth& variable : health.by_variable) {
    json hot_rows = json::array();
    for (const HotRow& row : variable.hot_rows)
      hot_rows.push_back({{"row", row.row}, {"times", row.times}});
    all.push_back({{"name", variable.name},
                   {"pulls", variable.pulls},
                   {"pushes", variable.pushes},
                   {"pulled_bytes", variable.pulled_bytes},
                   {"pushed_bytes", variable.pushed_bytes},
                   {"pulled_rows", variable.pulled_rows},
                   {"pushed_rows", variable.pushed_rows},
                   {"hot_rows", hot_rows}});
  }
  return all;
}

json member_of(const collective::MemberStatus& member) {
  const TaskProgress& progress = member.progress;
  json values = json::object();
  for (const auto& [name, value] : progress.values)
    values[name] = std::isfinite(value) ? json(value) : json(fmt::format("{}", value));
  json program = nullptr;
  if (progress.program_steps > 0)
    program = {{"step", progress.program_step},
               {"steps", progress.program_steps},
               {"values", std::move(values)}};
  return {{"steps", progress.steps},
          {"steps_per_second", progress.steps_per_second},
          {"seconds_since_last_step",
           progress.since_last_step ? json(seconds_of(*progress.since_last_step)) : json()},
          {"group", member.group},
          {"workers", member.workers},
          {"is_forming", member.is_forming},
          {"program", std::move(program)}};
}

// Identifiers of 64 bits are written as texts, because not every reader of JSON keeps all digits.
json health_of(const TaskHealth& health) {
  return {{"incarnation", std::to_string(health.incarnation)},
          {"uptime_seconds", seconds_of(health.uptime)},
          {"closures",
           {{"run", health.closures_run},
            {"failed", health.closures_failed},
            {"queued", health.closures_queued},
            {"running", health.closures_running}}},
          {"pushes", {{"applied", health.pushes_applied}, {"dropped", health.pushes_dropped}}},
          {"bytes", {{"pulled", health.pulled_bytes}, {"pushed", health.pushed_bytes}}},
          {"stored", {{"variables", health.variables}, {"bytes", health.variable_bytes}}},
          {"rows_per_second", health.rows_per_second},
          {"variables", variables_of(health)},
          {"connections_lost", health.connections_lost},
          {"broken_frames", health.broken_frames},
          {"protocol_errors", health.protocol_errors},
          {"seconds_since_last_end",
           health.since_last_end ? json(seconds_of(*health.since_last_end)) : json()},
          {"last_error", last_error_of(health)},
          {"coordinator", health.coordinator ? coordinator_of(*health.coordinator) : json()}};
}

// The bytes of the busiest parameter server, divided by the mean of all that answer.
json skew_of_servers(const ClusterStatus& status) {
  double most = 0;
  double sum = 0;
  int servers = 0;
  for (const TaskStatus& task : status.tasks) {
    if (!task.task.starts_with("ps:") || task.probe.state != rpc::ProbeResult::State::answers)
      continue;
    const auto bytes =
        static_cast<double>(task.probe.health.pulled_bytes + task.probe.health.pushed_bytes);
    most = std::max(most, bytes);
    sum += bytes;
    ++servers;
  }
  return servers < 2 || sum == 0 ? json() : json(most * servers / sum);
}

}  // namespace

const char* json_name_of(rpc::ProbeResult::State state) {
  constexpr std::array kNames = {"answers", "nobody_listens", "no_answer", "stranger",
                                 "name_not_resolved"};
  return kNames.at(static_cast<std::size_t>(state));
}

std::string json_of(const ClusterStatus& status) {
  json tasks = json::array();
  for (const TaskStatus& task : status.tasks) {
    const bool answers = task.probe.state == rpc::ProbeResult::State::answers;
    tasks.push_back({{"task", task.task.empty() ? json() : json(task.task)},
                     {"address", task.address},
                     {"state", json_name_of(task.probe.state)},
                     {"reason", answers ? json() : json(task.probe.reason)},
                     {"health", answers ? health_of(task.probe.health) : json()},
                     {"member", task.member ? member_of(*task.member) : json()}});
  }
  const json line = {{"schema", kSchema},
                     {"exit_code", exit_code_of(status)},
                     {"server_skew", skew_of_servers(status)},
                     {"tasks", tasks},
                     {"missing", status.missing}};
  return line.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace cohort::cli
