// SPDX-License-Identifier: Apache-2.0
#include "cohort/cli/status_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

namespace cohort::cli {
namespace {

using State = rpc::ProbeResult::State;

constexpr int kPeerUnavailable = 69;
constexpr std::size_t kColumnsMax = 100;
constexpr std::size_t kAddressMax = 26;
constexpr std::size_t kTaskMax = 10;

std::string text_of(State state) {
  std::string text = json_name_of(state);
  std::replace(text.begin(), text.end(), '_', ' ');
  return text;
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
  const double seconds = std::max(0.0, std::chrono::duration<double>(duration).count());
  if (seconds < 9.95) return fmt::format("{:.1f}s", seconds);
  if (seconds < 119.5) return fmt::format("{:.0f}s", seconds);
  if (seconds < 7200) return fmt::format("{:.0f}m", seconds / 60);
  if (seconds < 172'800) return fmt::format("{:.0f}h", seconds / 3600);
  return fmt::format("{:.0f}d", seconds / 86'400);
}

// Blanks bytes that are not printable ASCII, as they could shift columns or move the terminal's
// cursor.
std::string in_ascii(std::string text) {
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
  std::string rest = in_ascii(text);
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
// The columns for workers of a synchronous job.
constexpr std::array<Column, 6> kMemberNumbers = {
    {{"UP", 5}, {"STEPS", 5}, {"PER S", 6}, {"LAST", 5}, {"GROUP", 5}, {"START", 6}}};
using MemberCells = std::array<std::string, kMemberNumbers.size()>;

template <std::size_t kCount>
std::array<std::string, kCount> titles_of(const std::array<Column, kCount>& columns) {
  std::array<std::string, kCount> titles;
  for (std::size_t i = 0; i < kCount; ++i) titles.at(i) = columns.at(i).title;
  return titles;
}

template <std::size_t kCount>
std::string row_of(const std::string& task, const std::string& address,
                   const std::array<Column, kCount>& columns,
                   const std::array<std::string, kCount>& cells) {
  std::string line = first_part(task, kTaskMax);
  line.resize(std::max(line.size(), kTaskMax), ' ');
  std::string shown = " " + last_part(address, kAddressMax);
  shown.resize(kAddressMax + 1, ' ');
  line += shown;
  for (std::size_t i = 0; i < kCount; ++i) {
    const std::size_t width = columns.at(i).width;
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

// "9.99", "123", "12k".
std::string short_rate(double rate) {
  return rate < 99.95 ? fmt::format("{:.1f}", rate)
                      : short_number(static_cast<std::uint64_t>(std::llround(rate)));
}

MemberCells cells_of(const collective::MemberStatus& member, const TaskHealth& health) {
  const TaskProgress& progress = member.progress;
  return {short_time(health.uptime),
          short_number(progress.steps),
          short_rate(progress.steps_per_second),
          progress.since_last_step ? short_time(*progress.since_last_step) : "-",
          member.is_forming ? "forms" : std::to_string(member.workers),
          start_of(health)};
}

// "worker:0: step 120 of 500, accuracy 0.75, loss 0.5"; empty if its program has shown nothing.
std::string member_line(const std::string& task, const TaskProgress& progress) {
  if (progress.program_steps == 0) return {};
  std::string line = task + ": step " + std::to_string(progress.program_step) + " of " +
                     std::to_string(progress.program_steps);
  for (const auto& [name, value] : progress.values) line += fmt::format(", {} {:.6g}", name, value);
  return wrapped(line);
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

TaskStatus status_of(std::string task, std::string address, collective::MemberProbe probe) {
  using From = collective::MemberProbe::State;
  constexpr std::array kStates = {std::pair(From::answers, State::answers),
                                  std::pair(From::nobody_listens, State::nobody_listens),
                                  std::pair(From::no_answer, State::no_answer),
                                  std::pair(From::stranger, State::stranger),
                                  std::pair(From::name_not_resolved, State::name_not_resolved)};
  TaskStatus status{std::move(task), std::move(address), {}, {}};
  for (const auto& [from, to] : kStates) {
    if (probe.state == from) status.probe.state = to;
  }
  status.probe.reason = std::move(probe.reason);
  if (probe.state != From::answers) return status;
  status.probe.health.task = probe.status.task;
  status.probe.health.incarnation = probe.status.incarnation;
  status.probe.health.uptime = probe.status.uptime;
  status.member = std::move(probe.status);
  return status;
}

int exit_code_of(const ClusterStatus& status) {
  const bool all_answer =
      std::all_of(status.tasks.begin(), status.tasks.end(),
                  [](const TaskStatus& task) { return task.probe.state == State::answers; });
  return all_answer ? 0 : kPeerUnavailable;
}

// The table shows the columns of members if no other task answers.
std::string table_of(const ClusterStatus& status) {
  const bool has_members =
      std::any_of(status.tasks.begin(), status.tasks.end(),
                  [](const TaskStatus& task) { return task.member.has_value(); });
  const bool has_servers = std::any_of(
      status.tasks.begin(), status.tasks.end(),
      [](const TaskStatus& task) { return task.probe.state == State::answers && !task.member; });
  std::string text;
  if (has_servers || !has_members)
    text += row_of("TASK", "ADDRESS", kNumbers, titles_of(kNumbers)) + "\n";
  if (has_members)
    text += row_of("TASK", "ADDRESS", kMemberNumbers, titles_of(kMemberNumbers)) + "\n";
  std::string details;
  for (const TaskStatus& task : status.tasks) {
    const TaskHealth& health = task.probe.health;
    if (task.probe.state != State::answers) {
      std::string row = row_of(name_of_row(task), task.address, kNumbers, Cells());
      text +=
          row.substr(0, row.find_last_not_of(' ') + 1) + "  " + text_of(task.probe.state) + "\n";
      details +=
          wrapped(label_of(task) + ": " + text_of(task.probe.state) + ": " + task.probe.reason);
      continue;
    }
    if (task.member) {
      text +=
          row_of(name_of_row(task), task.address, kMemberNumbers, cells_of(*task.member, health)) +
          "\n";
      details += member_line(label_of(task), task.member->progress);
      continue;
    }
    text += row_of(name_of_row(task), task.address, kNumbers, cells_of(task.task, health)) + "\n";
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
