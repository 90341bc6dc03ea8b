// SPDX-License-Identifier: Apache-2.0
#include "bench/report.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <thread>

namespace cohort::bench {
namespace {

// A process's parent and its CPU time in ticks.
struct ProcessTime {
  long parent = 0;
  double ticks = 0;
};

ProcessTime process_time(const std::filesystem::path& folder) {
  std::ifstream file(folder / "stat");
  std::string text;
  std::getline(file, text);
  const auto end = text.rfind(')');  // the name before it may contain any character
  if (end == std::string::npos) return {};
  std::istringstream fields(text.substr(end + 1));
  std::string state, skipped;
  ProcessTime time;
  double user = 0, system = 0;
  fields >> state >> time.parent;
  for (int i = 0; i < 9; ++i) fields >> skipped;
  fields >> user >> system;
  time.ticks = user + system;
  return time;
}

double own_ticks() {
  const long self = ::getpid();
  double ticks = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const ProcessTime time = process_time(entry.path());
    if (std::stol(name) == self || time.parent == self) ticks += time.ticks;
  }
  return ticks;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, value >= 1000 ? "%.0f" : value >= 100 ? "%.1f" : "%.3g", value);
  return text;
}

}  // namespace

Spread spread_of(std::vector<double> figures) {
  std::sort(figures.begin(), figures.end());
  const std::size_t half = figures.size() / 2;
  const double median =
      figures.size() % 2 == 1 ? figures[half] : (figures[half - 1] + figures[half]) / 2;
  return {median, figures.front(), figures.back()};
}

double percentile(std::vector<double> figures, double share) {
  std::sort(figures.begin(), figures.end());
  const auto last = static_cast<double>(figures.size() - 1);
  return figures[static_cast<std::size_t>(share * last)];
}

Meter::Meter() : start_(read()) {}

Meter::Reading Meter::read() {
  std::ifstream file("/proc/stat");
  std::string cpu;
  double user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, soft = 0, steal = 0;
  file >> cpu >> user >> nice >> system >> idle >> wait >> irq >> soft >> steal;
  const double busy = user + nice + system + irq + soft;
  return {busy, steal, busy + idle + wait + steal, own_ticks()};
}

std::string Meter::say() const {
  const Reading now = read();
  const double total = std::max(1.0, now.total - start_.total);
  const double cores = std::max(1U, std::thread::hardware_concurrency());
  const double others = (now.busy - start_.busy) - (now.own - start_.own);
  double load = 0;
  std::ifstream("/proc/loadavg") >> load;
  char text[128];
  std::snprintf(text, sizeof text, "steal %.1f %%, other processes %.2f of %.0f cores, load %.1f",
                100 * (now.steal - start_.steal) / total, std::max(0.0, others) / total * cores,
                cores, load);
  return text;
}

Bench::Bench(int argc, char** argv) {
  const auto value_of = [](const std::string& argument, const std::string& name) {
    return argument.rfind(name, 0) == 0 ? argument.substr(name.size()) : std::string();
  };
  for (int i = 1; i < argc; ++i) {
    const std::string rounds = value_of(argv[i], "--rounds=");
    const std::string filter = value_of(argv[i], "--benchmark_filter=");
    if (!rounds.empty()) rounds_ = std::max(1, std::atoi(rounds.c_str()));
    if (!filter.empty()) filter_ = filter;
  }
}

bool Bench::wants(const std::string& title) const {
  return filter_.empty() || std::regex_search(title, std::regex(filter_));
}

void Bench::compare(const std::string& title, const Comparison& comparison,
                    const std::vector<Contender>& contenders) const {
  if (!wants(title)) return;
  for (const Contender& contender : contenders) contender.measure();
  const Meter meter;
  std::vector<std::vector<double>> figures(contenders.size());
  for (int round = 0; round < rounds_; ++round) {
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      figures[i].push_back(contenders[i].measure());
    }
  }
  std::printf("\n%s, %d rounds in turn (%s)\n", title.c_str(), rounds_, meter.say().c_str());
  std::printf("  %-44s %12s %12s %12s %8s\n", "", ("median " + comparison.unit).c_str(), "min",
              "max", "ratio");
  const double base = spread_of(figures[comparison.baseline]).median;
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    const Spread spread = spread_of(figures[i]);
    const double ratio = comparison.is_rate ? spread.median / base : base / spread.median;
    std::printf("  %-44s %12s %12s %12s %7.2fx\n", contenders[i].name.c_str(),
                number(spread.median).c_str(), number(spread.min).c_str(),
                number(spread.max).c_str(), ratio);
  }
  std::fflush(stdout);
}

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void require(bool is_equal, const std::string& what) {
  if (is_equal) return;
  std::fprintf(stderr, "the contenders disagree: %s\n", what.c_str());
  std::exit(1);
}

}  // namespace cohort::bench
