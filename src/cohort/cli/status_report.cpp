// SPDX-License-Identifier: Apache-2.0
#include "cohort/cli/status_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

namespace cohort::cli {
namespace {

using nlohmann::json;
using State = rpc::ProbeResult::State;

constexpr int kSchema = 2;
constexpr int kPeerUnavailable = 69;
constexpr std::size_t kColumnsMax = 100;
constexpr std::size_t kAddressMax = 26;
constexpr std::size_t kTaskMax = 10;

double seconds_of(Duration duration) { return std::chrono::duration<double>(duration).count(); }

const char* json_name_of(State state) {
  constexpr std::array kNames = {"answers", "nobody_listens", "no_answer", "stranger",
                                 "name_not_resolved"};
  return kNames.at(static_cast<std::size_t>(state));
}

std::string text_of(State state) {
  std::string text = json_name_of(state);
  std::replace(text.begin(), text.end(), '_', ' ');
  return text;
}

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
    if (!task.task.starts_with("ps:") || task.probe.state != State::answers) continue;
    const auto bytes =
        static_cast<double>(task.probe.health.pulled_bytes + task.probe.health.pushed_bytes);
    most = std::max(most, bytes);
    sum += bytes;
    ++servers;
  }
  return servers < 2 || sum == 0 ? json() : json(most * servers / sum);
}

// "9999", "12k", "3.4M": at most four characters.
std::string short_number(std::uint64_t number) {
  if (number < 10'000) return std::to_string(number);
  constexpr std::array<char, 6> kUnits = {'k', 'M', 'G', 'T', 'P', 'E'};
  auto value = static_cast<double>(number);
  std::size_t unit = 0;
  for (value /= 1000; value >= 999.5; value /= 1000) ++unit;
  return fmt::format("{:.{}f}{}", value, value < 9.95 ? 1 : 0, kUnits.at(unit));
}

// "0.2s", "59s", "12m", "3h", "99d": at most five characters.
std::string short_time(Duration duration) {
  const double seconds = std::max(0.0, seconds_of(duration));
  if (seconds < 9.95) return fmt::format("{:.1f}s", seconds);
  if (seconds < 119.5) return fmt::format("{:.0f}s", seconds);
  if (seconds < 7200) return fmt::format("{:.0f}m", seconds / 60);
  if (seconds < 172'800) return fmt::format("{:.0f}h", seconds / 3600);
  return fmt::format("{:.0f}d", seconds / 86'400);
}

// Replaces bytes that are not printable ASCII, as they could shift columns or move the terminal's
// cursor.
std::string printable(std::string text) {
  for (char& c : text) {
    if (c < ' ' || c > '~') c = ' ';
  }
  return text;
}

// Keeps the end of a long address, which has its port.
std::string last_part(const std::string& text, std::size_t columns) {
  return text.size() <= columns ? text : ".." + text.substr(text.size() - columns + 2);
}

std::string first_part(const std::string& text, std::size_t columns) {
  return text.size() <= columns ? text : text.substr(0, columns - 2) + "..";
}

// Breaks a text at spaces into lines of at most 100 columns; all but the first are indented.
std::string wrapped(const std::string& text) {
  constexpr std::string_view kIndent = "    ";
  std::string lines;
  std::string rest = printable(text);
  while (rest.size() > kColumnsMax) {
    std::size_t end = rest.rfind(' ', kColumnsMax);
    if (end == std::string::npos || end <= kIndent.size()) end = kColumnsMax;
    lines += rest.substr(0, end) + "\n";
    rest =
        std::string(kIndent) + rest.substr(std::min(rest.find_first_not_of(' ', end), rest.size()));
  }
  return lines + rest + "\n";
}

struct Column {
  const char* title;
  std::size_t width;
};
constexpr std::array<Column, 11> kNumbers = {{{"UP", 5},
                                              {"OPEN", 4},
                                              {"RUN", 4},
                                              {"FAIL", 4},
                                              {"PUSHES", 6},
                                              {"DROP", 4},
                                              {"PULL", 4},
                                              {"PUSH", 4},
                                              {"LOST", 4},
                                              {"END", 5},
                                              {"START", 6}}};
using Cells = std::array<std::string, kNumbers.size()>;

std::string row_of(const std::string& task, const std::string& address, const Cells& cells) {
  std::string line = first_part(task, kTaskMax);
  line.resize(std::max(line.size(), kTaskMax), ' ');
  std::string shown = " " + last_part(address, kAddressMax);
  shown.resize(kAddressMax + 1, ' ');
  line += shown;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const std::size_t width = kNumbers.at(i).width;
    line += " " + std::string(width - std::min(width, cells.at(i).size()), ' ') + cells.at(i);
  }
  return line;
}

// The first digits of the incarnation, which differ after a restart.
std::string start_of(const TaskHealth& health) {
  return fmt::format("{:016x}", health.incarnation).substr(0, 6);
}

Cells cells_of(const std::string& task, const TaskHealth& health) {
  const bool is_ps = task.starts_with("ps:");
  const bool is_worker = task.starts_with("worker:");
  const auto& own = health.coordinator;
  const auto closures = [&](std::uint64_t number) { return is_ps ? "-" : short_number(number); };
  const auto updates = [&](std::uint64_t number) { return is_worker ? "-" : short_number(number); };
  return {short_time(health.uptime),
          closures(own ? own->queued + own->in_flight
                       : health.closures_queued + health.closures_running),
          closures(own ? own->completed : health.closures_run),
          closures(own ? own->failed : health.closures_failed),
          own ? "-" : updates(health.pushes_applied),
          updates(health.pushes_dropped),
          updates(health.pulled_bytes),
          updates(health.pushed_bytes),
          short_number(health.connections_lost),
          health.since_last_end ? short_time(*health.since_last_end) : "-",
          start_of(health)};
}

std::string name_of_row(const TaskStatus& status) {
  if (!status.task.empty()) return status.task;
  return status.probe.health.coordinator ? "coord." : "-";
}

std::string label_of(const TaskStatus& status) {
  return status.task.empty() ? status.address : status.task;
}

std::string coordinator_lines(const TaskStatus& status) {
  const CoordinatorHealth& own = *status.probe.health.coordinator;
  const auto counted = [](std::uint64_t number, const char* what) {
    return std::to_string(number) + " " + what;
  };
  std::string lines =
      wrapped("coordinator: " + counted(own.queued, "queued, ") +
              counted(own.in_flight, "in flight, ") + counted(own.completed, "completed, ") +
              counted(own.failed, "failed, ") + counted(own.cancelled, "cancelled, ") +
              counted(own.retries, "retries, ") + counted(own.traces, "traces"));
  for (std::size_t i = 0; i < own.workers.size(); ++i) {
    const WorkerHealth& worker = own.workers[i];
    if (worker.is_ready && worker.times_lost == 0) continue;
    lines +=
        wrapped("  worker:" + std::to_string(i) + " " + (worker.is_ready ? "is back" : "is away") +
                ", lost " + counted(worker.times_lost, worker.times_lost == 1 ? "time" : "times"));
  }
  return lines;
}

std::string error_line(const TaskStatus& status) {
  const TaskError& error = *status.probe.health.last_error;
  std::string line = "last error of " + label_of(status) + ", " + short_time(error.age) +
                     " ago: " + std::string(name_of(error.code));
  if (error.cause != ErrorCause::none) line += " (" + std::string(name_of(error.cause)) + ")";
  if (!error.origin.empty()) line += " at " + error.origin;
  return wrapped(line + (error.text.empty() ? "" : ": " + error.text));
}

}  // namespace

int exit_code_of(const ClusterStatus& status) {
  const bool all_answer =
      std::all_of(status.tasks.begin(), status.tasks.end(),
                  [](const TaskStatus& task) { return task.probe.state == State::answers; });
  return all_answer ? 0 : kPeerUnavailable;
}

std::string json_of(const ClusterStatus& status) {
  json tasks = json::array();
  for (const TaskStatus& task : status.tasks) {
    const bool answers = task.probe.state == State::answers;
    tasks.push_back({{"task", task.task.empty() ? json() : json(task.task)},
                     {"address", task.address},
                     {"state", json_name_of(task.probe.state)},
                     {"reason", answers ? json() : json(task.probe.reason)},
                     {"health", answers ? health_of(task.probe.health) : json()}});
  }
  const json line = {{"schema", kSchema},
                     {"exit_code", exit_code_of(status)},
                     {"server_skew", skew_of_servers(status)},
                     {"tasks", tasks},
                     {"missing", status.missing}};
  return line.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string table_of(const ClusterStatus& status) {
  Cells titles;
  for (std::size_t i = 0; i < titles.size(); ++i) titles.at(i) = kNumbers.at(i).title;
  std::string text = row_of("TASK", "ADDRESS", titles) + "\n";
  std::string details;
  for (const TaskStatus& task : status.tasks) {
    const TaskHealth& health = task.probe.health;
    if (task.probe.state != State::answers) {
      std::string row = row_of(name_of_row(task), task.address, Cells());
      text +=
          row.substr(0, row.find_last_not_of(' ') + 1) + "  " + text_of(task.probe.state) + "\n";
      details +=
          wrapped(label_of(task) + ": " + text_of(task.probe.state) + ": " + task.probe.reason);
      continue;
    }
    text += row_of(name_of_row(task), task.address, cells_of(task.task, health)) + "\n";
    if (health.coordinator) details += coordinator_lines(task);
    if (health.broken_frames + health.protocol_errors > 0) {
      details +=
          wrapped(label_of(task) + ": " + std::to_string(health.broken_frames) +
                  " broken frames, " + std::to_string(health.protocol_errors) + " protocol errors");
    }
    if (health.last_error) details += error_line(task);
  }
  for (const std::string& missing : status.missing) details += wrapped("missing: " + missing);
  return text + (details.empty() ? "" : "\n" + details);
}

}  // namespace cohort::cli
