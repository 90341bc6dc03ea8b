// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/metrics/metrics_text.h"

#include <charconv>
#include <chrono>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace cohort::rpc::internal {
namespace {

using Labels = std::vector<std::pair<std::string_view, std::string>>;

// Used only from one thread.
class MetricsWriter {
 public:
  explicit MetricsWriter(const std::string& task) : task_(task) {}

  // Begins a metric; its samples follow.
  void begin(std::string_view name, std::string_view kind, std::string_view help) {
    name_ = "cohort_" + std::string(name);
    text_ += "# HELP " + name_ + " " + std::string(help) + "\n";
    text_ += "# TYPE " + name_ + " " + std::string(kind) + "\n";
  }
  void sample(std::uint64_t value, const Labels& labels = {}) {
    add(std::to_string(value), labels);
  }
  void sample(double value, const Labels& labels = {}) {
    char digits[32];
    const auto end = std::to_chars(digits, digits + sizeof(digits), value).ptr;
    add(std::string(digits, end), labels);
  }
  // A metric of one sample.
  void counter(std::string_view name, std::string_view help, std::uint64_t value) {
    begin(name, "counter", help);
    sample(value);
  }
  template <class Value>
  void gauge(std::string_view name, std::string_view help, Value value) {
    begin(name, "gauge", help);
    sample(value);
  }
  std::string take() { return std::move(text_); }

 private:
  void add(const std::string& value, const Labels& labels) {
    text_ += name_ + "{task=\"" + escaped(task_) + "\"";
    for (const auto& [label, text] : labels)
      text_ += "," + std::string(label) + "=\"" + escaped(text) + "\"";
    text_ += "} " + value + "\n";
  }
  static std::string escaped(std::string_view text) {
    std::string result;
    for (const char c : text) {
      if (c == '\n') {
        result += "\\n";
        continue;
      }
      if (c == '\\' || c == '"') result += '\\';
      result += c;
    }
    return result;
  }

  const std::string task_;
  std::string name_;
  std::string text_;
};

void write_task(MetricsWriter& to, const TaskHealth& health) {
  to.gauge("uptime_seconds", "Time since the task started.",
           std::chrono::duration<double>(health.uptime).count());
  to.begin("closures_total", "counter", "Closures that ended on this task.");
  to.sample(health.closures_run, {{"result", "ok"}});
  to.sample(health.closures_failed, {{"result", "failed"}});
  to.begin("closures", "gauge", "Closures that have not ended.");
  to.sample(health.closures_queued, {{"state", "queued"}});
  to.sample(health.closures_running, {{"state", "running"}});
  to.begin("pushes_total", "counter", "Messages with updates of variables.");
  to.sample(health.pushes_applied, {{"result", "applied"}});
  to.sample(health.pushes_dropped, {{"result", "dropped"}});
  to.counter("pulled_bytes_total", "Bytes of values that were read.", health.pulled_bytes);
  to.counter("pushed_bytes_total", "Bytes of updates.", health.pushed_bytes);
  to.gauge("rows_per_second", "Rows that were read and written, in the last ten seconds.",
           health.rows_per_second);
  to.gauge("variables", "Variables, or shards of them, that are stored.", health.variables);
  to.gauge("variable_bytes", "Bytes of the values that are stored.", health.variable_bytes);
  to.counter("connections_lost_total", "Connections of the job that broke.",
             health.connections_lost);
  to.counter("broken_frames_total", "Damaged frames.", health.broken_frames);
  to.counter("protocol_errors_total", "Messages that no correct task sends.",
             health.protocol_errors);
}

void write_coordinator(MetricsWriter& to, const CoordinatorHealth& own) {
  to.begin("coordinator_closures_total", "counter", "Closures that ended.");
  to.sample(own.completed, {{"result", "ok"}});
  to.sample(own.failed, {{"result", "failed"}});
  to.sample(own.cancelled, {{"result", "cancelled"}});
  to.begin("coordinator_closures", "gauge", "Closures that have not ended.");
  to.sample(own.queued, {{"state", "queued"}});
  to.sample(own.in_flight, {{"state", "in_flight"}});
  to.counter("coordinator_retries_total", "Closures that were sent again.", own.retries);
  to.counter("coordinator_traces_total", "Programs that were traced.", own.traces);
  const auto of_workers = [&](const auto& value_of) {
    for (std::size_t i = 0; i < own.workers.size(); ++i)
      to.sample(value_of(own.workers[i]), {{"worker", std::to_string(i)}});
  };
  to.begin("coordinator_worker_ready", "gauge", "Whether the worker gets closures.");
  of_workers([](const WorkerHealth& worker) { return std::uint64_t{worker.is_ready}; });
  to.begin("coordinator_worker_lost_total", "counter", "How often the worker was lost.");
  of_workers([](const WorkerHealth& worker) { return worker.times_lost; });
}

void write_variables(MetricsWriter& to, const std::vector<VariableHealth>& variables) {
  const auto of_each = [&](std::string_view name, std::string_view help, const auto& value_of) {
    to.begin(name, "counter", help);
    for (const VariableHealth& variable : variables)
      to.sample(value_of(variable), {{"variable", variable.name}});
  };
  of_each("variable_pulls_total", "Reads of the variable.",
          [](const VariableHealth& variable) { return variable.pulls; });
  of_each("variable_pushes_total", "Updates of the variable.",
          [](const VariableHealth& variable) { return variable.pushes; });
  of_each("variable_pulled_bytes_total", "Bytes of the variable that were read.",
          [](const VariableHealth& variable) { return variable.pulled_bytes; });
  of_each("variable_pushed_bytes_total", "Bytes of the variable's updates.",
          [](const VariableHealth& variable) { return variable.pushed_bytes; });
  of_each("variable_pulled_rows_total", "Rows that were read by their numbers.",
          [](const VariableHealth& variable) { return variable.pulled_rows; });
  of_each("variable_pushed_rows_total", "Rows that were updated by their numbers.",
          [](const VariableHealth& variable) { return variable.pushed_rows; });
  to.begin("variable_hot_row", "gauge", "About how often one of the hottest rows was used.");
  for (const VariableHealth& variable : variables)
    for (const HotRow& row : variable.hot_rows)
      to.sample(row.times, {{"variable", variable.name}, {"row", std::to_string(row.row)}});
}

}  // namespace

std::string metrics_text(const TaskHealth& health, const std::string& task) {
  MetricsWriter to(task);
  write_task(to, health);
  if (health.coordinator) write_coordinator(to, *health.coordinator);
  if (!health.by_variable.empty()) write_variables(to, health.by_variable);
  return to.take();
}

}  // namespace cohort::rpc::internal
